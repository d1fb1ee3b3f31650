//! The parts of a run that are processes of their own: this program started again with a role.
//!
//! A role's settings are one argument of JSON. What it has to say are lines of JSON on its standard output: a server
//! first says where it listens and then answers commands from its standard input, whose end is its own; a worker says
//! its result and ends.

use crate::limits::{bare, outbound, prototype};
use crate::{ledger, load, plugin, receiver, verify};
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;

/// The argument that says that a role follows.
pub(crate) const FLAG: &str = "--role";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    Load(load::Load),
    Receiver,
    Bare(bare::Bare),
    Outbound(outbound::Outbound),
    Prototype(prototype::Prototype),
    Ledger(ledger::Cycles),
    Past(ledger::Past),
    Aged(ledger::Cycles),
    Plugin(plugin::Calls),
    Verify(verify::Checks),
}

pub(crate) fn run(role: &str) -> Result<()> {
    match serde_json::from_str(role).context("read the role")? {
        Role::Load(load) => say(&load::run(load)?),
        Role::Receiver => receiver::run(),
        Role::Bare(bare) => bare::run(bare),
        Role::Outbound(outbound) => say(&outbound::run(&outbound)?),
        Role::Prototype(prototype) => prototype::run(&prototype),
        Role::Ledger(cycles) => say(&ledger::run(&cycles)?),
        Role::Past(past) => {
            say(&ledger::run_past(&past)?)?;
            // As if it were killed: nothing is closed.
            std::process::exit(0);
        }
        Role::Aged(cycles) => say(&ledger::run_aged(&cycles)?),
        Role::Plugin(calls) => say(&plugin::run(&calls)?),
        Role::Verify(checks) => say(&verify::run(&checks)?),
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Listening {
    pub(crate) at: SocketAddr,
}

fn say<T: Serialize>(what: &T) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, what)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// A server's end of its pipes.
pub(crate) struct Control;

impl Control {
    /// Says where the server listens, and answers commands for as long as somebody is there to give them.
    pub(crate) fn start(at: SocketAddr, mut answer: impl FnMut(&str) -> Result<Value> + Send + 'static) -> Result<()> {
        say(&Listening { at })?;
        std::thread::Builder::new().name("control".into()).spawn(move || {
            let done = std::io::stdin().lock().lines().try_for_each(|command| say(&answer(&command?)?));
            std::process::exit(i32::from(done.is_err()));
        })?;
        Ok(())
    }

    /// For a server that is only started and stopped.
    pub(crate) fn start_silent(at: SocketAddr) -> Result<()> {
        Control::start(at, |_| Ok(Value::Null))
    }
}
