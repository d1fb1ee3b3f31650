//! Lists without an end: a line of JSON each, to standard output or a file.

use super::operation::{clear, progress};
use super::{Client, Context, Exit, Failure};
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Between two words about how far it has come.
const TELL_EVERY: Duration = Duration::from_secs(1);

#[derive(clap::Args, Debug)]
pub(super) struct Exporting {
    /// Into this file, which only its owner may read
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// With what is or was sent: `content_type`, and `body` or `body_base64`
    #[arg(long)]
    bodies: bool,
}

/// `noun`: what the lines are.
pub(super) async fn run(
    export: Exporting,
    client: &mut Client,
    context: &mut Context<'_>,
    (path, mut query): (&str, Vec<(&'static str, String)>),
    noun: &str,
) -> Result<Exit, Failure> {
    if export.bodies {
        query.push(("bodies", "true".to_owned()));
    }
    let mut file = export.output.as_deref().map(created).transpose()?;
    let mut lines = 0_usize;
    let mut told = Instant::now();
    let output = &mut context.output;
    let mut take = |piece: &[u8]| -> Result<(), Failure> {
        match &mut file {
            Some(file) => file.write_all(piece)?,
            None => output.streams.out.write_all(piece)?,
        }
        lines += piece.iter().filter(|byte| **byte == b'\n').count();
        if told.elapsed() >= TELL_EVERY {
            progress(output, &format!("{lines} {noun} so far"));
            told = Instant::now();
        }
        Ok(())
    };
    let ended = client.stream(path, &query, &mut take).await;
    if let Some(file) = &mut file {
        file.flush()?;
        file.get_ref().sync_all()?;
    }
    clear(&mut context.output);
    match ended {
        Ok(()) => {
            context.output.say(&format!("{lines} {noun} exported"));
            Ok(Exit::Done)
        }
        Err(failure) if failure.exit == Exit::Unreachable && lines > 0 => {
            // What is there is right; what is missing is not known.
            let _ = writeln!(context.output.streams.err, "error: after {lines} {noun}: {failure}");
            Ok(Exit::Partly)
        }
        Err(failure) => Err(failure),
    }
}

fn created(path: &Path) -> Result<BufWriter<File>, Failure> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    let failed = |e| Failure::usage(format!("`{}` cannot be written: {e}", path.display()), "check the path");
    file.map(BufWriter::new).map_err(failed)
}
