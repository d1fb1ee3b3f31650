//! An allocator for guests that live for one call: it goes forward and frees nothing.
//!
//! The host throws the whole instance away after a call, so tidying up within it is work for nobody. The first
//! megabyte is part of the module's own memory: a call that stays within it never asks the host for more, and that
//! asking is by far the dearest part of an allocation. Beyond it memory grows as usual.
//!
//! ```text
//! #[cfg(target_arch = "wasm32")]
//! #[global_allocator]
//! static ARENA: arena::Arena = arena::Arena::new();
//! ```

#![no_std]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::null_mut;

const OWN: usize = 1 << 20;
const PAGE: usize = 1 << 16;

#[repr(align(16))]
struct Own(UnsafeCell<[u8; OWN]>);

// SAFETY: guests have one thread.
unsafe impl Sync for Own {}

static OWN_BYTES: Own = Own(UnsafeCell::new([0; OWN]));

/// The allocator. There must be one in a module.
pub struct Arena {
    span: UnsafeCell<Span>,
}

/// What is left: addresses from `next` to `end`. Both 0 before the first allocation.
struct Span {
    next: usize,
    end: usize,
}

// SAFETY: guests have one thread.
unsafe impl Sync for Arena {}

impl Arena {
    pub const fn new() -> Self {
        Arena { span: UnsafeCell::new(Span { next: 0, end: 0 }) }
    }

    /// One thread, and no reference outlives the method it is taken in.
    #[allow(clippy::mut_from_ref)]
    fn span(&self) -> &mut Span {
        // SAFETY: see above.
        unsafe { &mut *self.span.get() }
    }
}

impl Default for Arena {
    fn default() -> Self {
        Self::new()
    }
}

impl Span {
    fn take(&mut self, layout: Layout) -> *mut u8 {
        if self.end == 0 {
            self.next = OWN_BYTES.0.get() as usize;
            self.end = self.next + OWN;
        }
        let Some(mut at) = self.next.checked_next_multiple_of(layout.align()) else { return null_mut() };
        if at.checked_add(layout.size()).is_none_or(|after| after > self.end) {
            let Some(asked) = layout.size().checked_add(layout.align()) else { return null_mut() };
            let Some(from) = grow(asked.div_ceil(PAGE)) else { return null_mut() };
            if from != self.end {
                self.next = from;
            }
            self.end = from + asked.div_ceil(PAGE) * PAGE;
            at = self.next.next_multiple_of(layout.align());
        }
        self.next = at + layout.size();
        at as *mut u8
    }
}

#[cfg(target_arch = "wasm32")]
fn grow(pages: usize) -> Option<usize> {
    match core::arch::wasm32::memory_grow(0, pages) {
        usize::MAX => None,
        before => Some(before * PAGE),
    }
}

/// Off wasm only the first megabyte is there: enough for this crate's own tests.
#[cfg(not(target_arch = "wasm32"))]
fn grow(_: usize) -> Option<usize> {
    None
}

// SAFETY: what is handed out is aligned, within memory, and never handed out twice, since `next` only rises.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.span().take(layout)
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let span = self.span();
        let begin = at as usize;
        // What was taken last stretches in place: vectors and strings that are being filled.
        if begin + layout.size() == span.next && size <= span.end - begin {
            span.next = begin + size;
            return at;
        }
        if size <= layout.size() {
            return at;
        }
        // SAFETY: the caller's layout was valid, and so is its alignment with a size that the caller vouches for.
        let fresh = span.take(unsafe { Layout::from_size_align_unchecked(size, layout.align()) });
        if !fresh.is_null() {
            // SAFETY: both are valid for the old size and do not overlap.
            unsafe { core::ptr::copy_nonoverlapping(at, fresh, layout.size()) };
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, since there is one arena.
    #[test]
    fn what_is_taken_is_apart_aligned_and_bounded() {
        let arena = Arena::new();
        let layout = |size, align| Layout::from_size_align(size, align).unwrap();
        // SAFETY: layouts are valid, and pointers are used within them.
        unsafe {
            let a = arena.alloc(layout(3, 1));
            let b = arena.alloc(layout(8, 8));
            assert!((b as usize).is_multiple_of(8) && b as usize >= a as usize + 3);
            b.write(7);
            let grown = arena.realloc(b, layout(8, 8), 100);
            assert_eq!(grown, b, "the last one stretches in place");
            let moved = arena.realloc(a, layout(3, 1), 50);
            assert!(moved as usize >= b as usize + 100);
            let kept = arena.realloc(b, layout(100, 8), 200);
            assert_eq!(kept.read(), 7, "what moves takes its content along");
            assert!(arena.alloc(layout(OWN, 1)).is_null());
            assert!(!arena.alloc(layout(1000, 1)).is_null(), "after a refusal it still serves");
        }
    }
}
