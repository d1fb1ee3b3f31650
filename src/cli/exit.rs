//! How a command ends, and what it says when it does not end well.

use std::fmt;
use std::process::ExitCode;

/// The exit codes that scripts rely on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    Done,
    Failed,
    /// Usage or configuration.
    Usage,
    Unreachable,
    NotAllowed,
    NotFound,
    Conflict,
    Partly,
    /// A check found problems.
    Problems,
}

impl Exit {
    pub const fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Unreachable => 3,
            Exit::NotAllowed => 4,
            Exit::NotFound => 5,
            Exit::Conflict => 6,
            Exit::Partly => 7,
            Exit::Problems => 8,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

/// A command that did not do what it was asked to: why, and what to do about it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct Failure {
    pub exit: Exit,
    pub message: String,
    pub remedy: Option<String>,
}

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Failure { exit, message: message.into(), remedy: None }
    }

    pub fn usage(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Failure::new(Exit::Usage, message).with_remedy(remedy)
    }

    #[must_use]
    pub fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Failure { remedy: Some(remedy.into()), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.remedy {
            Some(remedy) => write!(f, "\n  help: {remedy}"),
            None => Ok(()),
        }
    }
}

/// Nobody reads any more: there is nothing left to say, and nothing went wrong.
impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        let exit = if e.kind() == std::io::ErrorKind::BrokenPipe { Exit::Done } else { Exit::Failed };
        Failure::new(exit, format!("input or output failed: {e}"))
    }
}
