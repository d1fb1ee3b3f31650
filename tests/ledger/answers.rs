//! Answers kept for their idempotency keys.

use crate::bench::Bench;
use hookgate::ledger::{ANSWERS_KEPT_FOR, KeptAnswer, LedgerError, RequestId, Retention};
use http::{HeaderName, HeaderValue};
use sha2::Digest as _;
use std::collections::BTreeMap;
use std::time::Duration;

fn id(text: &str) -> RequestId {
    RequestId::new(text).unwrap()
}

fn answer(body: &str) -> KeptAnswer {
    KeptAnswer {
        asked: [7; 32],
        status: 409,
        headers: vec![(HeaderName::from_static("content-type"), HeaderValue::from_static("application/problem+json"))],
        body: body.to_owned().into(),
    }
}

fn retention() -> Retention {
    let days = |n: u64| Duration::from_secs(n * 86_400);
    Retention { payloads: days(14), rows: days(90), tenants: BTreeMap::new(), batch_rows_max: 100 }
}

#[test]
fn a_request_id_is_visible_ascii() {
    for good in ["a", "!~", &"x".repeat(255)] {
        assert_eq!(id(good).as_str(), good);
    }
    for bad in ["", " ", "a b", "a\n", "\u{7f}", "é", &"x".repeat(256)] {
        assert_eq!(RequestId::new(bad), None, "{bad:?}");
    }
}

#[tokio::test]
async fn an_answer_is_kept_for_a_day_over_a_restart() {
    let bench = Bench::new().await;
    let (acme, globex) = (bench.tenant("acme"), bench.tenant("globex"));
    bench.ledger.keep_answer(acme, &id("k"), answer("of acme, canary-3309"), bench.now()).await.unwrap();
    bench.ledger.keep_answer(globex, &id("k"), answer("of globex"), bench.now()).await.unwrap();
    let bench = bench.restart().await;
    let kept = async |tenant, key| bench.ledger.kept_answer(tenant, &id(key), bench.now()).await.unwrap();
    assert_eq!(kept(acme, "k").await, Some(answer("of acme, canary-3309")));
    assert_eq!(kept(globex, "k").await, Some(answer("of globex")));
    assert_eq!(kept(acme, "K").await, None);

    bench.clock.advance(ANSWERS_KEPT_FOR - Duration::from_millis(1));
    assert!(kept(acme, "k").await.is_some());
    bench.clock.advance(Duration::from_millis(1));
    assert_eq!(kept(acme, "k").await, None, "though its row is still there");
    bench.ledger.keep_answer(acme, &id("k"), answer("the next"), bench.now()).await.unwrap();
    assert_eq!(kept(acme, "k").await, Some(answer("the next")));
}

#[tokio::test]
async fn neither_key_nor_answer_is_on_the_disk_in_clear() {
    let bench = Bench::new().await;
    let acme = bench.tenant("acme");
    bench.ledger.keep_answer(acme, &id("order-of-jane-4417"), answer("canary-3309"), bench.now()).await.unwrap();
    for file in ["ledger.db", "ledger.db-wal"] {
        let bytes = std::fs::read(bench.path.with_file_name(file)).unwrap();
        for word in ["order-of-jane-4417", "canary-3309"] {
            assert!(memchr::memmem::find(&bytes, word.as_bytes()).is_none(), "{word} in {file}");
        }
    }
    // And no answer can be put under another key.
    bench.ledger.keep_answer(acme, &id("other"), answer("else"), bench.now()).await.unwrap();
    let put = "UPDATE answer SET content = (SELECT content FROM answer WHERE request = ?1) WHERE request <> ?1";
    let from: [u8; 32] = sha2::Sha256::digest(b"order-of-jane-4417").into();
    assert_eq!(bench.raw().execute(put, [from]).unwrap(), 1);
    let moved = bench.ledger.kept_answer(acme, &id("other"), bench.now()).await;
    assert!(matches!(moved, Err(LedgerError::Quarantined(_))), "{moved:?}");
}

#[tokio::test]
async fn what_is_over_goes_in_bounded_batches() {
    let bench = Bench::new().await;
    let acme = bench.tenant("acme");
    let keep = async |n: usize| {
        let request = id(&format!("k-{n}"));
        bench.ledger.keep_answer(acme, &request, answer("x"), bench.now()).await.unwrap();
    };
    for chunk in 0..11 {
        futures_util::future::join_all((0..100).map(|n| keep(chunk * 100 + n))).await;
    }
    bench.clock.advance(ANSWERS_KEPT_FOR);
    keep(5_000).await;
    let first = bench.ledger.prune(&retention(), bench.now()).await.unwrap();
    assert_eq!((first.rows_removed, first.more), (1_000, true));
    let second = bench.ledger.prune(&retention(), bench.now()).await.unwrap();
    assert_eq!((second.rows_removed, second.more), (100, false));
    let left: u32 = bench.raw().query_row("SELECT count(*) FROM answer", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 1);
}
