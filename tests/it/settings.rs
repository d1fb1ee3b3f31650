//! A broken configuration never half-starts; a reload takes effect or changes nothing.

use super::{Gateway, Receiver, endpoint, github_source, until};

#[tokio::test]
async fn every_mistake_is_told_at_once_and_nothing_starts() {
    let gateway = Gateway::stopped(
        "[tenants.acme.sources.github]\nscheme = \"gitub\"\nsecrets = [\"x\"]\n\
         [tenants.acme.endpoints.a]\nurl = \"ftp://example.com/\"\ntimeuot = \"3s\"\n",
    );
    let config = gateway.config();
    for command in ["check", "serve"] {
        let output = gateway.command(&[command, "--config", config.to_str().unwrap()]).output().unwrap();
        assert!(!output.status.success(), "{command}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        for word in ["gitub", "ftp", "timeuot"] {
            assert!(text.contains(word), "{command} does not name `{word}`:\n{text}");
        }
    }
    assert!(!gateway.dir.path().join("data").exists(), "a ledger was made for a configuration that does not hold");
}

#[tokio::test]
async fn sighup_applies_what_the_file_says_now() {
    let (old, new) = (Receiver::kind().await, Receiver::kind().await);
    let mut gateway = Gateway::start(&(github_source() + &endpoint("billing", &old.url("/"), ""))).await;
    gateway.accepted(gateway.github("1", "push", "1")).await;
    old.until_count(1).await;
    let text = std::fs::read_to_string(gateway.config()).unwrap();
    std::fs::write(gateway.config(), text.replace(&old.url("/"), &new.url("/"))).unwrap();
    gateway.signal(libc::SIGHUP);
    let mut n = 1;
    until("the new receiver is used", || {
        n += 1;
        let (gateway, new) = (&gateway, &new);
        async move {
            gateway.accepted(gateway.github(&n.to_string(), "push", &n.to_string())).await;
            (new.count() > 0).then_some(())
        }
    })
    .await;
    // A broken file changes nothing.
    std::fs::write(gateway.config(), "[server]\nnonsense = 1\n").unwrap();
    gateway.signal(libc::SIGHUP);
    until("the mistake is told", || async { gateway.log().contains("nonsense").then_some(()) }).await;
    let before = new.count();
    gateway.accepted(gateway.github("last", "push", "last")).await;
    new.until_count(before + 1).await;
    assert!(gateway.running());
}
