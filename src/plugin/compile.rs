//! Compiling, away from the gateway.
//!
//! A hundred kilobytes of hostile wasm can cost a compiler half a minute and gigabytes, and compilers have bugs. So
//! the work is done by a process of its own: this same binary with [`SUBCOMMAND`], which bounds its own CPU time and
//! memory, has one thread and no environment, reads wasm and gives back an artefact or a refusal.
//!
//! Input: three little-endian `u64`, its standing in line for a processor and the CPU seconds and bytes of address space
//! that it may take, then the wasm. Output: the artefact and exit code 0, or a message on standard error and exit code 3.
//!
//! What the parent does for it, it does on a thread for work that blocks: starting a process halts the thread that
//! asks, and an artefact of many megabytes is moved as it grows.

use super::{Rejected, artefact, engine, lane};
use bytes::Bytes;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// The hidden first argument with which the binary becomes the compiling process.
pub const SUBCOMMAND: &str = "__compile-plugin";

/// The exit code for wasm that does not compile, in contrast to a compiler that died of it.
const REFUSED: u8 = 3;

/// How much of the compiler's complaint is kept.
const MESSAGE_BYTES_MAX: usize = 2048;

/// What compiles.
#[derive(Clone, Debug)]
pub enum Compiler {
    /// `program args…` must end in [`child_main`].
    Child { program: PathBuf, args: Vec<String> },
    /// In the calling process, without bounds: for tests and benchmarks with wasm of one's own, never for uploads.
    InProcess,
}

impl Compiler {
    /// The running binary, whose `main` must turn to [`child_main`] at [`SUBCOMMAND`].
    pub fn this_binary() -> std::io::Result<Self> {
        // On Linux by this name, which stays right when the file is replaced by an upgrade.
        let itself = PathBuf::from("/proc/self/exe");
        let program = if itself.exists() { itself } else { std::env::current_exe()? };
        Ok(Compiler::Child { program, args: vec![SUBCOMMAND.to_owned()] })
    }
}

/// What a compilation may take. Beyond it the plugin is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompileLimits {
    pub cpu_max: Duration,
    pub memory_bytes_max: usize,
}

impl CompileLimits {
    pub const CAPS: CompileLimits = CompileLimits { cpu_max: Duration::from_secs(60), memory_bytes_max: 1536 << 20 };
}

/// Where the compiling process stands in line for a processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// Behind what else the machine does, with a fair part: nothing is served yet, and serving waits for it.
    Behind,
    /// Of the idle class: it runs where a processor would rest, and whoever wakes there goes first. The reading of
    /// what is not in memory stands likewise, by the kernel's own rule.
    Last,
}

impl Default for CompileLimits {
    fn default() -> Self {
        Self::CAPS
    }
}

pub(super) async fn compile(
    compiler: &Compiler,
    limits: CompileLimits,
    standing: Standing,
    wasm: Bytes,
) -> Result<Vec<u8>, Rejected> {
    let (compiler, runtime) = (compiler.clone(), tokio::runtime::Handle::current());
    // The process ends when nobody waits for it any more.
    let (waits, gone) = tokio::sync::oneshot::channel::<()>();
    let work = move || match compiler {
        Compiler::InProcess => artefact_of(&wasm).map_err(|e| does_not_compile(&format!("{e:#}"))),
        Compiler::Child { program, args } => runtime.block_on(async {
            tokio::select! {
                made = child(&program, &args, limits, standing, &wasm, patience(limits)) => made,
                _ = gone => Err(Rejected::host("nobody waits for the compiling process any more".into())),
            }
        }),
    };
    let made = tokio::task::spawn_blocking(work).await;
    drop(waits);
    made.unwrap_or_else(|e| Err(too_costly(&e.to_string())))
}

fn artefact_of(wasm: &[u8]) -> wasmtime::Result<Vec<u8>> {
    engine::engine(engine::Allocator::OnDemand, 1)?.precompile_component(wasm)
}

/// CPU time is bounded by the child; this is for one that sleeps, or a machine that is far too busy.
fn patience(limits: CompileLimits) -> Duration {
    limits.cpu_max.max(Duration::from_secs(1)) * 3 + Duration::from_secs(10)
}

async fn child(
    program: &PathBuf,
    args: &[String],
    limits: CompileLimits,
    standing: Standing,
    wasm: &[u8],
    patience: Duration,
) -> Result<Vec<u8>, Rejected> {
    let failed = |e: std::io::Error| Rejected::host(format!("the compiling process {}: {e}", program.display()));
    let mut child = tokio::process::Command::new(program)
        .args(args)
        .env_clear()
        // The allocator would reserve a gigabyte of the address space that the child is allowed.
        .env("MIMALLOC_ARENA_RESERVE", "0")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let (Some(mut input), Some(output), Some(complaint)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(Rejected::host("the compiling process has no pipes".into()));
    };
    let cpu_seconds = limits.cpu_max.as_secs().max(1);
    let give = async move {
        let last = u64::from(standing == Standing::Last);
        let head = [last, cpu_seconds, limits.memory_bytes_max as u64].map(u64::to_le_bytes).concat();
        // A child that died early does not read on. Its exit status tells more than the broken pipe.
        let _ = input.write_all(&head).await;
        let _ = input.write_all(wasm).await;
    };
    let mut artefact = Vec::new();
    let mut message = Vec::new();
    let mut output = output.take(artefact::BYTES_MAX + 1);
    let mut complaint = complaint.take(MESSAGE_BYTES_MAX as u64);
    let whole = async {
        // The compiler writes its complaint last and little of it, so that reading one after the other is enough.
        let (_, read) = tokio::join!(give, output.read_to_end(&mut artefact));
        // One that has more to say than it may is not waited for.
        drop(output);
        read?;
        complaint.read_to_end(&mut message).await?;
        child.wait().await
    };
    let Ok(status) = tokio::time::timeout(patience, whole).await else {
        let within = patience.as_secs();
        return Err(Rejected::host(format!("the compiler got too little processor time within {within} s")));
    };
    let status = status.map_err(failed)?;
    let message = String::from_utf8_lossy(&message);
    match status.code() {
        Some(0) if artefact.is_empty() || artefact.len() as u64 > artefact::BYTES_MAX => {
            Err(too_costly("the compiled code is too large"))
        }
        Some(0) => Ok(artefact),
        Some(code) if code == i32::from(REFUSED) => Err(does_not_compile(message.trim())),
        _ => Err(too_costly(&format!("the compiling process ended with {status}"))),
    }
}

fn does_not_compile(message: &str) -> Rejected {
    let finding = message.chars().take(600).filter(|c| !c.is_control() || *c == '\n').collect();
    Rejected { rule: "compile", finding, remedy: "check the component with wasm-tools validate".into() }
}

fn too_costly(what: &str) -> Rejected {
    Rejected {
        rule: "compile_limit",
        finding: format!("compiling took more than is allowed: {what}"),
        remedy: "split very large functions, or build for size".into(),
    }
}

/// The compiling process, from its start to its exit code.
pub fn child_main() -> ExitCode {
    match child_run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // Nobody is left to tell when standard error is closed.
            let _ = write!(std::io::stderr(), "{e:#}");
            ExitCode::from(REFUSED)
        }
    }
}

fn child_run() -> wasmtime::Result<()> {
    let mut input = std::io::stdin().lock();
    let mut word = [0u8; 8];
    input.read_exact(&mut word)?;
    let standing = if u64::from_le_bytes(word) == 0 { Standing::Behind } else { Standing::Last };
    input.read_exact(&mut word)?;
    let cpu_seconds = u64::from_le_bytes(word).clamp(1, CompileLimits::CAPS.cpu_max.as_secs());
    input.read_exact(&mut word)?;
    let memory_bytes = u64::from_le_bytes(word).min(CompileLimits::CAPS.memory_bytes_max as u64);
    stand(standing)?;
    bound(cpu_seconds, memory_bytes)?;
    let mut wasm = Vec::new();
    let most = super::Limits::CAPS.component_bytes_max as u64;
    input.take(most).read_to_end(&mut wasm)?;
    std::io::stdout().lock().write_all(&artefact_of(&wasm)?)?;
    Ok(())
}

/// Where a processor is short, this process waits for the gateway; where memory is, it is the one to go.
#[allow(unsafe_code)]
fn stand(standing: Standing) -> std::io::Result<()> {
    match standing {
        // SAFETY: `nice` has no memory in its contract. That it may fail does not matter.
        Standing::Behind => drop(unsafe { libc::nice(10) }),
        Standing::Last => drop(lane::lowest_class()),
    }
    match std::fs::write("/proc/self/oom_score_adj", "1000") {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Bounds this process for good: CPU time, address space, no file written, no core dumped.
#[allow(unsafe_code)]
fn bound(cpu_seconds: u64, memory_bytes: u64) -> std::io::Result<()> {
    let limits = [
        (libc::RLIMIT_CPU, cpu_seconds),
        (libc::RLIMIT_AS, memory_bytes),
        (libc::RLIMIT_FSIZE, 0),
        (libc::RLIMIT_CORE, 0),
    ];
    for (resource, most) in limits {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: the call reads one `rlimit` from a valid reference and keeps nothing of it.
        if unsafe { libc::setrlimit(resource, &raw const limit) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_binary_is_the_running_one() {
        let Compiler::Child { program, args } = Compiler::this_binary().unwrap() else { panic!() };
        assert_eq!(program.canonicalize().unwrap(), std::env::current_exe().unwrap().canonicalize().unwrap());
        assert_eq!(args, [SUBCOMMAND]);
    }

    #[tokio::test]
    async fn a_compiler_that_gets_no_processor_time_is_not_the_plugins_fault() {
        let (sleep, limits) = (PathBuf::from("/bin/sleep"), CompileLimits::CAPS);
        assert_eq!(patience(limits), Duration::from_secs(190));
        let told = child(&sleep, &["600".to_owned()], limits, Standing::Last, b"", Duration::from_millis(50))
            .await
            .unwrap_err();
        assert_eq!(told.rule, "host", "{told}");
        assert!(told.finding.contains("too little processor time") && told.remedy.contains("try again"), "{told}");
    }
}
