//! Secrets that providers handed over: the first one stays until it is forgotten, and nobody reads it on the disk.

use crate::bench::{Bench, START, settings};
use futures_util::future::join_all;
use hookgate::clock::Timestamp;
use hookgate::ledger::{Adopted, LedgerError, SourceKey, TenantKey};
use hookgate::secret::Secret;
use std::sync::Arc;
use std::time::Duration;

const FIRST: &str = "canary-of-the-first-handshake";
const SECOND: &str = "canary-of-the-second-handshake";

type Of = (TenantKey, SourceKey);

fn of(bench: &Bench, tenant: &str) -> Of {
    let entry = &bench.directory.tenants[tenant];
    (entry.key, entry.sources["github"])
}

async fn adopt(bench: &Bench, (tenant, source): Of, secret: &str) -> Adopted {
    bench.ledger.adopt(tenant, source, Secret::new(secret), bench.now()).await.unwrap()
}

async fn forget(bench: &Bench, (tenant, source): Of) -> bool {
    bench.ledger.forget(tenant, source).await.unwrap()
}

/// What the source holds, and since when.
fn held(bench: &Bench, (_, source): Of) -> Option<(String, Timestamp)> {
    let held = bench.ledger.adopted(source)?;
    Some((held.secret.expose_str().unwrap().to_owned(), held.at))
}

#[tokio::test]
async fn the_first_secret_stays_until_it_is_forgotten() {
    let bench = Bench::new().await;
    let (ours, theirs) = (of(&bench, "acme"), of(&bench, "globex"));
    assert_eq!(held(&bench, ours), None);
    assert_eq!(adopt(&bench, ours, FIRST).await, Adopted::Held);
    let first = Some((FIRST.to_owned(), START));
    assert_eq!(held(&bench, ours), first);
    let same = bench.ledger.adopted(ours.1).unwrap();
    bench.clock.advance(Duration::from_secs(60));
    assert_eq!(adopt(&bench, ours, FIRST).await, Adopted::Held, "a repetition");
    assert_eq!(adopt(&bench, ours, SECOND).await, Adopted::Other);
    assert!(Arc::ptr_eq(&same, &bench.ledger.adopted(ours.1).unwrap()), "neither changes anything");

    // Another tenant's source of the same name is another source.
    assert_eq!(held(&bench, theirs), None);
    assert!(!forget(&bench, theirs).await, "it holds none");
    assert!(!forget(&bench, (theirs.0, ours.1)).await, "nobody else's");
    let bench = bench.restart().await;
    assert_eq!(held(&bench, ours), first);
    assert_eq!(adopt(&bench, ours, SECOND).await, Adopted::Other, "over a restart");

    bench.clock.advance(Duration::from_secs(60));
    assert!(forget(&bench, ours).await);
    assert_eq!(held(&bench, ours), None);
    assert!(!forget(&bench, ours).await, "twice is once");
    let bench = bench.restart().await;
    assert_eq!(held(&bench, ours), None);
    bench.clock.advance(Duration::from_secs(60));
    assert_eq!(adopt(&bench, ours, SECOND).await, Adopted::Held);
    assert_eq!(held(&bench, ours), Some((SECOND.to_owned(), bench.now())));
}

#[tokio::test]
async fn of_many_at_once_one_wins() {
    let bench = Bench::new().await;
    let ours = of(&bench, "acme");
    let secrets: Vec<String> = (0..64).map(|n| format!("the-secret-of-handshake-{n}")).collect();
    let all = join_all(secrets.iter().map(|secret| adopt(&bench, ours, secret))).await;
    let won: Vec<usize> = (0..all.len()).filter(|n| all[*n] == Adopted::Held).collect();
    let [won] = won.as_slice() else { panic!("{won:?}") };
    assert_eq!(held(&bench, ours).unwrap().0, secrets[*won]);
    // Whatever order they come in, memory and row agree.
    for _ in 0..20 {
        tokio::join!(
            forget(&bench, ours),
            adopt(&bench, ours, FIRST),
            forget(&bench, ours),
            adopt(&bench, ours, SECOND)
        );
    }
    let before = held(&bench, ours);
    let bench = bench.restart().await;
    assert_eq!(held(&bench, ours), before);
}

#[tokio::test]
async fn what_was_answered_is_behind_an_fsync_and_sealed() {
    let bench = Bench::new().await;
    let ours = of(&bench, "acme");
    assert_eq!(adopt(&bench, ours, FIRST).await, Adopted::Held);
    let after = bench.copy_as_after_a_crash().await;
    assert_eq!(held(&after, ours), Some((FIRST.to_owned(), START)));
    let folder = || std::fs::read_dir(bench.path.parent().unwrap()).unwrap();
    let mut files = 0;
    for file in folder() {
        let bytes = std::fs::read(file.as_ref().unwrap().path()).unwrap();
        assert!(!bytes.windows(FIRST.len()).any(|w| w == FIRST.as_bytes()), "{file:?}");
        files += 1;
    }
    assert!(files >= 3, "{files}");
    assert!(!format!("{:?}", bench.ledger.adopted(ours.1)).contains("canary"));
}

#[tokio::test]
async fn a_sealed_secret_opens_in_its_own_row_alone() {
    let bench = Bench::new().await;
    let (ours, entry) = (of(&bench, "acme"), &bench.directory.tenants["acme"]);
    let other = (ours.0, entry.sources["stripe"]);
    assert_eq!(adopt(&bench, ours, FIRST).await, Adopted::Held);
    assert_eq!(adopt(&bench, other, SECOND).await, Adopted::Held);
    let sql = "UPDATE source SET secret = (SELECT secret FROM source WHERE id = ?) WHERE id = ?";
    assert_eq!(bench.raw().execute(sql, (ours.1.0, other.1.0)).unwrap(), 1);
    let again = bench.ledger.adopt(other.0, other.1, Secret::new(SECOND), bench.now()).await;
    assert!(matches!(again, Err(LedgerError::Quarantined(_))), "{again:?}");
    let (path, dir) = (bench.path.clone(), Arc::clone(&bench.dir));
    drop(bench);
    match Bench::try_open(settings(&path), dir, START).await {
        Err(LedgerError::Open { problem, .. }) => assert!(problem.contains("adopted secret of source"), "{problem}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("a start without a secret that was held"),
    }
}

#[tokio::test]
async fn a_source_that_is_not_there_adopts_nothing() {
    let bench = Bench::new().await;
    let (ours, theirs) = (of(&bench, "acme"), of(&bench, "globex"));
    for (tenant, source) in [(ours.0, SourceKey(4_711)), (theirs.0, ours.1)] {
        let adopted = bench.ledger.adopt(tenant, source, Secret::new(FIRST), bench.now()).await;
        assert!(matches!(adopted, Err(LedgerError::Unavailable(_))), "{adopted:?}");
        assert!(bench.ledger.adopted(source).is_none());
    }
}
