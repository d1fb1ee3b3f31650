//! The plugin `sms-rules`. [`rules`] know nothing of WebAssembly and are tested natively; `guest` puts them behind the
//! package of `wit/`.

#[cfg(target_arch = "wasm32")]
mod guest;
pub mod rules;
