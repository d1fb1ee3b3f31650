//! Death at each named point: what was promised until then is kept, and what was not can be asked for again.

#[cfg(not(crash_points))]
use super::Gateway;
use super::{Receiver, github_source};

fn config(receiver: &Receiver, attempts_max: u32) -> String {
    github_source()
        + &format!(
            "body_bytes_max = \"16MiB\"\n[tenants.acme.endpoints.billing]\nurl = \"{}\"\n\
             retry = {{ max_attempts = {attempts_max}, delays = [\"20ms\"], jitter = \"none\" }}\n",
            receiver.url("/")
        )
}

/// A build without the points does not know their variable either.
#[cfg(not(crash_points))]
#[tokio::test]
async fn no_crash_point_is_in_an_ordinary_build() {
    let receiver = Receiver::kind().await;
    let mut gateway = Gateway::stopped(&config(&receiver, 3));
    gateway.env.insert("HOOKGATE_CRASH_AT", ("I1").to_owned());
    let config = gateway.config();
    let output = gateway.command(&["check", "--config", config.to_str().unwrap()]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("HOOKGATE_CRASH_AT"), "{text}");
}

#[cfg(crash_points)]
pub(super) mod built_in {
    use super::super::journals::{by_delivery, check, deliveries, drained};
    use super::super::provider::{Acknowledged, Provider, body};
    use super::super::{Gateway, Receiver, Reply, until};
    use super::config;
    use std::ops::RangeInclusive;
    use std::os::unix::process::ExitStatusExt as _;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    pub(in super::super) const VARIABLE: &str = "HOOKGATE_CRASH_AT";

    struct Case {
        at: &'static str,
        /// Whether the event was stored: sent again it is a duplicate, under the id that it has.
        stored: bool,
        /// Whether a 2xx may have been seen before.
        acknowledged: bool,
        /// What the receiver answers, try by try. `None`: nothing while the first process lives, then 204.
        answers: Option<&'static [u16]>,
        sends: RangeInclusive<usize>,
        outcomes: &'static [&'static str],
    }

    const NOT_STORED: Case =
        Case { at: "I1", stored: false, acknowledged: false, answers: None, sends: 1..=1, outcomes: &["answered"] };
    const STORED: Case = Case {
        at: "I4",
        stored: true,
        acknowledged: false,
        answers: None,
        sends: 1..=1,
        outcomes: &["interrupted", "answered"],
    };
    const SENT: Case = Case { acknowledged: true, sends: 2..=2, answers: Some(&[204]), ..STORED };

    const CASES: &[Case] = &[
        Case { at: "I1", ..NOT_STORED },
        Case { at: "I2", ..NOT_STORED },
        Case { at: "I3", ..NOT_STORED },
        Case { at: "I4", ..STORED },
        // The dispatcher may have been quicker than the answer.
        Case { at: "I5", sends: 1..=2, ..STORED },
        Case { at: "D1", ..STORED },
        Case { at: "D2", answers: None, ..SENT },
        Case { at: "D3", answers: None, ..SENT },
        Case { at: "D4", ..SENT },
        Case { at: "D5", ..SENT },
        Case { at: "D6", sends: 1..=1, outcomes: &["answered"], ..SENT },
        // The second attempt is claimed in a transaction of its own.
        Case { at: "D1:2", answers: Some(&[503, 204]), outcomes: &["answered", "interrupted", "answered"], ..SENT },
        Case {
            at: "D4:2",
            sends: 3..=3,
            answers: Some(&[503]),
            outcomes: &["answered", "interrupted", "answered"],
            ..SENT
        },
        Case {
            at: "D5:2",
            sends: 3..=3,
            answers: Some(&[503, 503, 204]),
            outcomes: &["answered", "interrupted", "answered"],
            ..SENT
        },
        Case {
            at: "D6:2",
            sends: 3..=3,
            answers: Some(&[503, 503, 204]),
            outcomes: &["answered", "answered", "answered"],
            ..SENT
        },
    ];

    /// Waits for the process to die by its crash point.
    pub(in super::super) async fn dies(gateway: &mut Gateway, at: &str) {
        let status = gateway.exit().await;
        assert_eq!(status.signal(), Some(libc::SIGABRT), "{at}: {status}");
        let last_words = format!("crash point {}", at.split(':').next().unwrap());
        // Another thread may have had a word after it.
        let log = gateway.log();
        assert!(log.lines().rev().take(5).any(|line| line == last_words), "{at}: died of something else");
    }

    async fn run(case: &Case) {
        let at = case.at;
        let first_life = Arc::new(AtomicBool::new(true));
        let (held, answers) = (Arc::clone(&first_life), case.answers);
        let receiver = Receiver::start(move |_, before| match answers {
            Some(answers) => Reply::status(answers.get(before).copied().unwrap_or(204)),
            None if held.load(Ordering::SeqCst) => Reply::Hang,
            None => Reply::status(204),
        })
        .await;
        let mut gateway = Gateway::stopped(&config(&receiver, 5));
        // More than any socket takes at once, so that a part is a part.
        let body = if at == "D2" { format!("{{\"pad\":\"{}\"}}", "x".repeat(10 << 20)) } else { body(1) };
        let provider = Provider::of(&gateway);
        gateway.env.insert(VARIABLE, (at).to_owned());
        gateway.boot().await;
        let told: Option<Acknowledged> = provider.once(1, &body).await;
        assert!(case.acknowledged || told.is_none(), "{at}: acknowledged too early");
        assert!(told.as_ref().is_none_or(|told| !told.duplicate), "{at}");
        dies(&mut gateway, at).await;

        first_life.store(false, Ordering::SeqCst);
        gateway.env.remove(VARIABLE);
        gateway.boot().await;
        let stored: Vec<_> = deliveries(&gateway).await.iter().map(|d| d["event"].clone()).collect();
        assert_eq!(stored.len(), usize::from(case.stored), "{at}: in the log after the restart");
        let again = provider.until_acknowledged(1, &body).await;
        assert_eq!(again.duplicate, case.stored, "{at}");
        assert!(stored.iter().all(|event| *event == again.event.as_str()), "{at}: another id");
        assert!(told.is_none_or(|told| told.event == again.event), "{at}: another id than it was told");

        let row = gateway.until_deliveries("state=delivered", 1).await.remove(0);
        drained(&gateway).await;
        let all = deliveries(&gateway).await;
        assert_eq!(all.len(), 1, "{at}: {all:?}");
        let journal = receiver.until_count(*case.sends.start()).await;
        assert!(case.sends.contains(&journal.len()), "{at}: sent {} times", journal.len());
        if at == "D2" {
            assert_ne!(journal[0].body, body, "all of it was sent");
        }
        assert_eq!(journal.last().unwrap().body, body, "{at}");
        let sends = by_delivery(journal);
        assert_eq!(sends.len(), 1, "{at}: one webhook-id");
        let delivery = gateway.delivery(row["id"].as_str().unwrap()).await;
        let outcomes = check(&delivery, &sends[row["id"].as_str().unwrap()]);
        assert_eq!(outcomes, case.outcomes, "{at}: {delivery}");
        assert!(gateway.stop().await.success(), "{at}");
    }

    #[tokio::test]
    async fn a_death_at_any_point_keeps_what_was_promised() {
        for case in CASES {
            run(case).await;
        }
    }

    /// A request that kills the process is not tried for ever.
    #[tokio::test]
    async fn deaths_in_a_row_end_as_a_crash_loop() {
        for (attempts_max, deaths) in [(9, 3), (3, 3), (2, 2), (1, 1)] {
            let receiver = Receiver::start(|_, _| Reply::Hang).await;
            let mut gateway = Gateway::stopped(&config(&receiver, attempts_max));
            gateway.env.insert(VARIABLE, ("D3").to_owned());
            gateway.boot().await;
            let provider = Provider::of(&gateway);
            let told = provider.once(1, &body(1)).await;
            dies(&mut gateway, "D3").await;
            for _ in 1..deaths {
                gateway.spawn();
                dies(&mut gateway, "D3").await;
            }
            gateway.boot().await;
            let dead = gateway.until_deliveries("state=dead", 1).await.remove(0);
            assert_eq!(dead["reason"], "crash_loop", "{dead}");
            assert!(told.is_none_or(|told| dead["event"] == told.event.as_str()));
            drained(&gateway).await;
            let journal = receiver.until_count(deaths).await;
            assert_eq!(journal.len(), deaths, "at most one send for each death");
            let delivery = gateway.delivery(dead["id"].as_str().unwrap()).await;
            assert_eq!(check(&delivery, &journal), vec!["interrupted"; deaths], "{delivery}");
            assert_eq!(gateway.metric("hookgate_dlq_depth ").await, Some(1.0));
            assert!(gateway.stop().await.success());
        }
    }

    /// An answer between two deaths begins the row anew.
    #[tokio::test]
    async fn deaths_with_an_answer_between_them_are_no_crash_loop() {
        let receiver = Receiver::sequence(&[204, 204, 503, 204, 204, 204]).await;
        let mut gateway = Gateway::stopped(&config(&receiver, 9));
        gateway.env.insert(VARIABLE, ("D4").to_owned());
        gateway.boot().await;
        let provider = Provider::of(&gateway);
        provider.once(1, &body(1)).await;
        dies(&mut gateway, "D4").await;
        gateway.spawn();
        dies(&mut gateway, "D4").await;
        gateway.env.insert(VARIABLE, ("D4:2").to_owned());
        gateway.spawn();
        dies(&mut gateway, "D4:2").await;
        gateway.env.insert(VARIABLE, ("D4").to_owned());
        gateway.spawn();
        dies(&mut gateway, "D4").await;
        gateway.env.remove(VARIABLE);
        gateway.boot().await;
        let row = gateway.until_deliveries("state=delivered", 1).await.remove(0);
        let delivery = gateway.delivery(row["id"].as_str().unwrap()).await;
        let outcomes = check(&delivery, &receiver.journal());
        assert_eq!(outcomes, ["interrupted", "interrupted", "answered", "interrupted", "interrupted", "answered"]);
        until("nothing is in flight", || async {
            (gateway.metric("hookgate_in_flight ").await == Some(0.0)).then_some(())
        })
        .await;
    }
}
