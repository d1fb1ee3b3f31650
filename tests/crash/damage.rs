//! A log of the ledger that is not as it was left: a disk that lied about its flushes.

use super::provider::{Provider, body};
use super::{Gateway, Receiver, github_source, until};
use std::path::Path;

/// What happens to the bytes of the write-ahead log.
type Damage = fn(&mut Vec<u8>);

const DAMAGES: &[(&str, Damage)] = &[
    ("gone", Vec::clear),
    ("cut within its header", |wal| wal.truncate(20)),
    ("cut within a frame", |wal| wal.truncate(wal.len() * 2 / 3 + 7)),
    ("its last frame torn", |wal| {
        let at = wal.len().saturating_sub(1_000);
        wal[at..].fill(0);
    }),
    ("a frame in the middle overwritten", |wal| {
        let at = wal.len() / 2;
        wal[at..at + 64].fill(0xa5);
    }),
    ("its header overwritten", |wal| wal[..32].fill(0xff)),
    ("noise behind its end", |wal| wal.extend([0x5a; 5_000])),
];

fn harm(wal: &Path, damage: Damage) {
    let mut bytes = std::fs::read(wal).unwrap();
    assert!(bytes.len() > 4_096, "nothing was in the log");
    damage(&mut bytes);
    std::fs::write(wal, bytes).unwrap();
}

/// What the disk has lost is lost; but the gateway opens with the rest, or says why it does not.
#[tokio::test]
async fn a_damaged_log_is_opened_or_refused() {
    let receiver = Receiver::kind().await;
    let config = github_source() + &super::process::endpoint("billing", &receiver.url("/"), "");
    let mut gateway = Gateway::start(&config).await;
    let provider = Provider::of(&gateway);
    let wal = gateway.dir.path().join("data/ledger.db-wal");
    let mut n = 0;
    for (what, damage) in DAMAGES {
        for _ in 0..10 {
            n += 1;
            provider.until_acknowledged(n, &body(n)).await;
        }
        gateway.kill();
        harm(&wal, *damage);
        gateway.spawn();
        let ready = format!("http://{}/readyz", gateway.admin);
        let serves = until(what, || {
            let ended = !gateway.running();
            let ready = reqwest::get(&ready);
            async move { if ended { Some(false) } else { (ready.await.ok()?.status() == 200).then_some(true) } }
        })
        .await;
        assert!(!gateway.log().contains("panicked"), "{what}");
        assert!(serves, "{what}: a log that is cut or torn ends where it is whole:\n{}", gateway.log());
        n += 1;
        let sent_before = receiver.count();
        provider.until_acknowledged(n, &body(n)).await;
        until(what, || async {
            let came = receiver.journal().split_off(sent_before).iter().any(|seen| seen.body == body(n));
            came.then_some(())
        })
        .await;
    }
}
