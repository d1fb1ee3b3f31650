//! The examples' own files, run by the tests of their jobs, so that they cannot rot.

use super::Gateway;
use std::path::Path;
use std::time::Duration;

/// An example as it stands, but for what a test replaces in it: ports, and waits nobody has time for. What is to be
/// replaced must be there.
pub fn example(name: &str, edits: &[(&str, &str)]) -> Gateway {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
    let mut text = std::fs::read_to_string(folder.join("hookgate.toml")).unwrap();
    for (from, to) in edits {
        assert!(text.contains(from), "{name} has no `{from}`");
        text = text.replace(from, to);
    }
    // What is beside the file stays there.
    let path = format!("path = \"{}/", folder.display());
    Gateway::of_file("", &text.replace("path = \"../", &format!("{path}../")))
}

/// How the process ends in the middle.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    Stopped,
    Killed,
}

impl Ending {
    pub const ALL: [Ending; 2] = [Ending::Stopped, Ending::Killed];

    /// Ends the process, and starts it again.
    pub async fn restart(self, gateway: &mut Gateway) {
        match self {
            Ending::Stopped => assert!(gateway.stop().await.success()),
            Ending::Killed => gateway.kill(),
        }
        gateway.boot().await;
    }
}

/// A time so far from now, as it is written in a request.
pub fn from_now(span: Duration) -> String {
    super::retries::jiff_now_plus(span)
}
