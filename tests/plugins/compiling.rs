//! The compiling process as the system sees it.

use super::{child, guests, settings};
use hookgate::plugin::{Compiler, Host};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const SCHED_OTHER: &str = "0";
const SCHED_IDLE: &str = "5";

/// What `/proc` says of a process.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    policy: String,
    nice: String,
    threads: String,
    limits: Vec<String>,
}

fn seen(pid: &str) -> Option<Seen> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // From the state on, which is the third: a name may have blanks.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).map(|s| (*s).to_owned());
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let bounded = ["Max cpu time", "Max address space", "Max file size", "Max core file size"];
    let hard = |name: &str| limits.lines().find(|l| l.starts_with(name))?.split_whitespace().rev().nth(1);
    let limits = bounded.iter().filter_map(|name| hard(name)).map(str::to_owned).collect();
    Some(Seen { policy: field(41)?, nice: field(19)?, threads: field(20)?, limits })
}

/// A host whose compiling process leaves its id in `file`.
fn host(file: &Path) -> Arc<Host> {
    let Compiler::Child { program, args } = child() else { panic!() };
    let script = file.with_extension("sh");
    let text = format!("#!/bin/sh\necho $$ >{}\nexec {} {}\n", file.display(), program.display(), args.join(" "));
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    let mut settings = settings();
    settings.compiler = Compiler::Child { program: script, args: Vec::new() };
    settings.compile.cpu_max = Duration::from_secs(50);
    settings.compile.memory_bytes_max = 1 << 30;
    Host::new(settings).unwrap()
}

async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = look() {
                break found;
            }
            tokio::time::sleep(Duration::from_millis(2)).await; // poll: another process gets on
        }
    };
    tokio::time::timeout(Duration::from_secs(60), found).await.unwrap_or_else(|_| panic!("not seen: {what}"))
}

/// Looks at a process that compiles what takes it long, until it has put on its last bound; then nobody waits for it.
async fn look_at(serving: bool) -> Seen {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let host = host(&file);
    if serving {
        host.begin_serving();
    }
    let load =
        tokio::spawn(
            async move { host.load(&"acme".parse().unwrap(), guests::bomb().into()).await.map(drop).unwrap_err() },
        );
    let pid = until("its id", || fs::read_to_string(&file).ok().filter(|s| s.ends_with('\n'))).await;
    let pid = pid.trim().to_owned();
    let whole = |seen: &Seen| seen.limits == ["50", "1073741824", "0", "0"];
    let seen = until("its bounds", || seen(&pid).filter(whole)).await;
    assert_eq!(fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim(), "1000");
    load.abort();
    until("its end", || (!Path::new("/proc").join(&pid).exists()).then_some(())).await;
    seen
}

#[tokio::test]
async fn beside_traffic_it_is_of_the_idle_class_and_has_one_thread() {
    let seen = look_at(true).await;
    assert_eq!((seen.policy.as_str(), seen.threads.as_str()), (SCHED_IDLE, "1"), "{seen:?}");
}

#[tokio::test]
async fn before_anything_is_served_it_has_a_fair_part() {
    let own: i32 = seen("self").unwrap().nice.parse().unwrap();
    let seen = look_at(false).await;
    let (nice, policy) = ((own + 10).min(19).to_string(), SCHED_OTHER.to_owned());
    assert_eq!((&seen.policy, &seen.nice, seen.threads.as_str()), (&policy, &nice, "1"), "{seen:?}");
}
