//! Every command, in words: the text of `docs/cli.md`, from the same data as the help. Tests hold the file against
//! it, and try every example.

use super::{Cli, Exit};
use clap::{Arg, Command, CommandFactory as _};
use std::fmt::Write as _;

const INTRO: &str = "\
`hookgate` is the server and everything that one needs around it. `hookgate <command> --help` says the same as this page.

Data goes to standard output, talk and mistakes to standard error, so that output can be piped. On a terminal lists are
tables within its width, lesser columns being left out where it is narrow, and times are short and in UTC; `--json` gives one document (commands without an end give one a line), `--quiet` only ids.
`NO_COLOR` is honoured. What senders, receivers and plugins wrote is shown as text: no control character of theirs
reaches the terminal.

A flag goes before the environment, the environment before the configuration file. A *secret* is written `env:NAME`,
`file:PATH`, or as it is; the first two keep it out of the shell's history. A *duration* is a whole number with `ms`,
`s`, `m`, `h` or `d`. A *time* is RFC 3339, such as `2026-01-31T08:00:00Z`.
";

const EXITS: [(Exit, &str); 9] = [
    (Exit::Done, "done"),
    (Exit::Failed, "failed"),
    (Exit::Usage, "usage or configuration: nothing was tried"),
    (Exit::Unreachable, "the server cannot be reached"),
    (Exit::NotAllowed, "not allowed"),
    (Exit::NotFound, "not found"),
    (Exit::Conflict, "in conflict with the state of things"),
    (Exit::Partly, "partly done"),
    (Exit::Problems, "a check found problems"),
];

/// What is worth more words than the help has room for, by command.
const NOTES: [(&str, &str); 21] = [
    (
        "hookgate demo",
        "With `--json` the tour is one document: `stages`, each with its `title`, the `way` of the event and the `facts` \
         shown, the `urls`, and the `seconds` it took. In the demo's folder, which it names, every command finds its \
         gateway by the configuration there.",
    ),
    (
        "hookgate dlq redrive",
        "Ids are redriven one by one, at once; exit code 7 when some were refused. With a filter or `--all` an \
         [operation](dead-letters.md#many-at-once) redrives them. `--watch` follows it: progress on standard error, exit code \
         7 when some were skipped, are dead again by its end, or were left because it was stopped.",
    ),
    (
        "hookgate dlq export",
        "A line for each, the newest first, whatever `--json` or `--quiet` say. The progress is on standard error. What \
         dies meanwhile is not among them, and what leaves the DLQ meanwhile may be missing. Exit code 7 when it broke off \
         after some of them.",
    ),
    (
        "hookgate dlq resolve",
        "Goes on call by call until none is left. Exit code 7 when a call failed after some were resolved; the same holds \
         for `purge` and for `hookgate delivery cancel` with a filter.",
    ),
    (
        "hookgate event replay",
        "[What is replayed](dead-letters.md#replay), and what the options of an operation mean. Exit codes with `--watch` \
         as for `hookgate dlq redrive`.",
    ),
    (
        "hookgate operation get",
        "With `--watch` as for `hookgate dlq redrive`; Ctrl-C ends the watching, not the operation.",
    ),
    (
        "hookgate plugin build",
        "Rust is built by cargo, JavaScript by componentize-qjs, Python by componentize-py, C by zig or by what the \
         variable `CC` names. What is missing is named with the command that installs it; nothing is installed. A core \
         module becomes a component here; no other tool is needed. The exit code is 8 when a gateway would refuse what \
         was built.",
    ),
    (
        "hookgate plugin check",
        "A component is looked at, compiled by a child process within a gateway's bounds, linked, and called once, as at \
         an upload. The limits are those of the tenant in the file that `--config` names, else what the project asks \
         for, else the defaults. Exit code 8 when it is refused.",
    ),
    (
        "hookgate plugin test",
        "[Fixtures](plugins.md#fixtures) run on a gateway's engine with a gateway's limits, found as `check` finds \
         them. Exit code 8 when one fails or is none. `--quiet` names those alone.",
    ),
    (
        "hookgate plugin run",
        "The memory is that of the instance at the end of the call. Exit code 8 when it is not as expected.",
    ),
    (
        "hookgate plugin bench",
        "A time is that of a call as a gateway counts it: a fresh instance, the arguments in, the answer out and \
         checked. Exit code 8 when a call was a fault.",
    ),
    (
        "hookgate plugin dry-run",
        "[What is tried on what](plugins.md#trying-a-version-on-the-past). On a terminal the progress is shown, and \
         Ctrl-C ends the run with what was counted so far: exit code 7.",
    ),
    (
        "hookgate plugin pull-fixtures",
        "[What is in them](plugins.md#fixtures-of-what-was-recorded). A file has the name of its case and a part of its \
         digest, so that the same case is the same file; what is there is kept without `--force`.",
    ),
    (
        "hookgate plugin shadow",
        "[What a shadow is asked](plugins.md#shadow). Without a version, `--watch` follows the trial that runs; with \
         `--json` each line is the trial as a document.",
    ),
    (
        "hookgate plugin canary",
        "[When a canary goes back](plugins.md#canary), and what becomes of its dead letters. To promote it: `hookgate \
         plugin activate`. `--watch` as for a shadow; its exit code is 8 when the canary was rolled back.",
    ),
    (
        "hookgate stats",
        "[What each figure says](api.md#statistics). On a terminal: a line and a chart for each endpoint, then all of them \
         together; off it the lines alone, and with `--json` everything. `DEAD` died in the window, `DLQ` is dead now; \
         `AT FIRST` is the share of what was delivered that the first attempt delivered, `TRIES` the attempts for each \
         delivered.",
    ),
    (
        "hookgate tail",
        "A line has the time of the change, as far as it is known: the end of a delivery or its beginning, else when it \
         was seen. A gateway that restarts is waited for, until Ctrl-C.",
    ),
    (
        "hookgate verify",
        "A request is read by what it begins with. Raw HTTP may be pasted from a log or a terminal: lines end with or \
         without a carriage return. The body is taken byte for byte; with a `content-length`, a line end that an editor \
         put behind it is left out. A curl command is read as a shell would, without running or filling in anything, and \
         as curl would send it: `-d` gives a content type, and `@FILE` is read. JSON is `{\"method\", \"url\", \
         \"headers\", \"body\"}`, with the body as text or, as `body_base64`, as bytes; what is left out is a POST, no \
         URL, no header, no body. Neither the secret nor the signature that would have been right is ever shown.\n\n\
         A file of cases is a list of `{\"id\", \"scheme\", \"request\", \"secrets\", \"now_unix\", \"tolerance_s\", \
         \"expect\", \"reason\"}`, its `request` being `{\"method\", \"url\", \"headers\", \"body_base64\"}`.",
    ),
    (
        "hookgate sign",
        "Where a scheme carries a list of signatures, every secret makes one; else the first secret does.",
    ),
    (
        "hookgate send",
        "No redirect is followed, and no proxy of the environment is used. A header given with `-H` replaces the \
         scheme's own: that is how to send a forgery. The exit code is 0 when every answer was a 2xx, 7 when some were. \
         For people, after a single event, the admin API is asked, if it is at hand, whether any endpoint takes it; if \
         none does, a hint says what they take.",
    ),
    (
        "hookgate listen",
        "The place in the list of statuses is kept for each `webhook-id` (or the scheme's own id), so that the retries \
         of one delivery walk through it; requests without an id share one place. A body may have 25 MiB; to people its \
         first KiB is shown, and `--json` has the headers and the first 16 KiB. The type is what the scheme verified, \
         else `x-github-event`, `hookgate-event-type`, or the body's `type`.",
    ),
];

/// One or two of each command.
const EXAMPLES: [(&str, &str); 96] = [
    ("hookgate alert list", "hookgate alert list --firing"),
    ("hookgate alert list", "hookgate alert list --all --json"),
    ("hookgate check", "hookgate check"),
    ("hookgate check", "hookgate check --text-only staging.toml"),
    ("hookgate completions", "hookgate completions bash"),
    ("hookgate delivery list", "hookgate delivery list --state dead --endpoint billing --since 2026-01-31T08:00:00Z"),
    ("hookgate delivery list", "hookgate delivery list --state pending --limit 500 --quiet"),
    ("hookgate delivery get", "hookgate delivery get dlv_01a22c30c0f870008114eb4fe6826dac"),
    (
        "hookgate delivery redrive",
        "hookgate delivery redrive dlv_01a22c30c0f870008114eb4fe6826dac --note 'fixed in 2.4.1'",
    ),
    (
        "hookgate delivery redrive",
        "hookgate delivery redrive dlv_01a22c30c0f870008114eb4fe6826dac --payload '{\"id\": 17}' --note 'id as a number'",
    ),
    ("hookgate delivery body", "hookgate delivery body dlv_01a22c30c0f870008114eb4fe6826dac --revision 1"),
    ("hookgate delivery resend", "hookgate delivery resend dlv_01a22c30c0f870008114eb4fe6826dac --note 'they lost it'"),
    ("hookgate delivery export", "hookgate delivery export --state delivered --since 24h --output delivered.jsonl"),
    ("hookgate delivery cancel", "hookgate delivery cancel dlv_01a22c30c0f870008114eb4fe6826dac"),
    ("hookgate delivery cancel", "hookgate delivery cancel --endpoint former --dry-run"),
    (
        "hookgate delivery resolve",
        "hookgate delivery resolve dlv_01a22c30c0f870008114eb4fe6826dac --as sent --note 'seen in their log'",
    ),
    ("hookgate demo", "hookgate demo"),
    ("hookgate demo", "hookgate demo --exit --json"),
    ("hookgate dlq list", "hookgate dlq list --reason http_500 --since 1h"),
    ("hookgate dlq groups", "hookgate dlq groups --since 24h"),
    ("hookgate dlq redrive", "hookgate dlq redrive dlv_01a22c30c0f870008114eb4fe6826dac --note 'the receiver is back'"),
    ("hookgate dlq redrive", "hookgate dlq redrive --host billing.example --reason http_502 --dry-run"),
    ("hookgate dlq redrive", "hookgate dlq redrive --reason http_502 --canary --rate 50 --yes --watch"),
    ("hookgate dlq export", "hookgate dlq export --host billing.example --bodies --output letters.jsonl"),
    ("hookgate dlq resolve", "hookgate dlq resolve --reason ambiguous --as sent --note 'seen in their log' --yes"),
    ("hookgate dlq purge", "hookgate dlq purge --endpoint former --until 30d --dry-run"),
    ("hookgate endpoint list", "hookgate endpoint list"),
    ("hookgate endpoint get", "hookgate endpoint get billing"),
    ("hookgate endpoint secret", "hookgate endpoint secret billing --quiet"),
    ("hookgate endpoint pause", "hookgate endpoint pause billing --for 30m --why 'their maintenance'"),
    ("hookgate endpoint resume", "hookgate endpoint resume billing"),
    ("hookgate endpoint enable", "hookgate endpoint enable billing"),
    ("hookgate endpoint disable", "hookgate endpoint disable billing --why 'the contract has ended'"),
    ("hookgate endpoint consume", "hookgate endpoint consume orders --max 10 --lease 1m --json"),
    (
        "hookgate endpoint ack",
        "hookgate endpoint ack orders rct_Ae6yCSGnfN6M3MUYVLpRJAAAAAAAAAABUpGMog --reference order-17",
    ),
    (
        "hookgate endpoint nack",
        "hookgate endpoint nack orders rct_Ae6yCSGnfN6M3MUYVLpRJAAAAAAAAAABUpGMog --delay 10m --reason busy",
    ),
    (
        "hookgate endpoint nack",
        "hookgate endpoint nack orders rct_Ae6yCSGnfN6M3MUYVLpRJAAAAAAAAAABUpGMog --terminal --reason no_such_order",
    ),
    (
        "hookgate endpoint extend",
        "hookgate endpoint extend orders rct_Ae6yCSGnfN6M3MUYVLpRJAAAAAAAAAABUpGMog --lease 5m",
    ),
    ("hookgate event list", "hookgate event list --type push --since 1h"),
    ("hookgate event get", "hookgate event get evt_01a22c30c0f870008114eb4fe6826dab"),
    ("hookgate event body", "hookgate event body evt_01a22c30c0f870008114eb4fe6826dab"),
    ("hookgate event publish", "hookgate event publish --type invoice.paid --key inv-17 --payload '{\"id\": 17}'"),
    (
        "hookgate event publish",
        "hookgate event publish --type report.ready --file report.csv --content-type text/csv --delay 10m",
    ),
    ("hookgate event replay", "hookgate event replay --endpoint audit --only-missed --since 7d --dry-run"),
    (
        "hookgate event replay",
        "hookgate event replay --endpoint billing --type invoice.paid --since 2026-01-31T08:00:00Z --canary --yes --watch",
    ),
    (
        "hookgate listen",
        "hookgate listen --port 9000 --secret env:BILLING_SIGNING --status 503,503,200 --retry-after 3",
    ),
    ("hookgate operation list", "hookgate operation list"),
    ("hookgate operation get", "hookgate operation get op_01a22c30c0f870008114eb4fe6826dae --watch"),
    ("hookgate operation stop", "hookgate operation stop op_01a22c30c0f870008114eb4fe6826dae"),
    ("hookgate operation pause", "hookgate operation pause op_01a22c30c0f870008114eb4fe6826dae"),
    ("hookgate operation resume", "hookgate operation resume op_01a22c30c0f870008114eb4fe6826dae"),
    ("hookgate plugin new", "hookgate plugin new --lang js partner-rules"),
    ("hookgate plugin new", "hookgate plugin new --lang rust partner-rules --dir rules --force"),
    ("hookgate plugin build", "hookgate plugin build"),
    ("hookgate plugin build", "hookgate plugin build rules --json"),
    ("hookgate plugin check", "hookgate plugin check"),
    ("hookgate plugin check", "hookgate plugin check partner-rules.wasm --config hookgate.toml --tenant acme"),
    ("hookgate plugin test", "hookgate plugin test"),
    ("hookgate plugin test", "hookgate plugin test --update fixtures/refused.json"),
    ("hookgate plugin test", "hookgate plugin test rules --plugin partner-rules.wasm --junit report.xml"),
    ("hookgate plugin run", "hookgate plugin run fixtures/refused.json"),
    ("hookgate plugin bench", "hookgate plugin bench"),
    ("hookgate plugin bench", "hookgate plugin bench fixtures/refused.json --calls 10000"),
    ("hookgate plugin fixture-schema", "hookgate plugin fixture-schema"),
    ("hookgate plugin list", "hookgate plugin list"),
    ("hookgate plugin get", "hookgate plugin get billing-rules"),
    ("hookgate plugin upload", "hookgate plugin upload billing-rules billing-rules.wasm --activate"),
    ("hookgate plugin activate", "hookgate plugin activate acme/billing-rules plg_01a22c30c0f870008114eb4fe6826dad"),
    (
        "hookgate plugin shadow",
        "hookgate plugin shadow acme/billing-rules plg_01a22c30c0f870008114eb4fe6826dad --share 10%",
    ),
    ("hookgate plugin shadow", "hookgate plugin shadow acme/billing-rules --stop"),
    (
        "hookgate plugin canary",
        "hookgate plugin canary acme/billing-rules plg_01a22c30c0f870008114eb4fe6826dad --share 5% --watch",
    ),
    ("hookgate plugin canary", "hookgate plugin canary acme/billing-rules --stop"),
    ("hookgate plugin rollback", "hookgate plugin rollback billing-rules"),
    (
        "hookgate plugin dry-run",
        "hookgate plugin dry-run billing-rules plg_01a22c30c0f870008114eb4fe6826dad --since 24h",
    ),
    (
        "hookgate plugin dry-run",
        "hookgate plugin dry-run acme/billing-rules plg_01a22c30c0f870008114eb4fe6826dad --limit 10000 --rows 100 --json",
    ),
    ("hookgate plugin pull-fixtures", "hookgate plugin pull-fixtures billing-rules --since 24h --verdict terminal"),
    (
        "hookgate plugin pull-fixtures",
        "hookgate plugin pull-fixtures billing-rules --redact --redact-field name --redact-field iban",
    ),
    (
        "hookgate send",
        "hookgate send http://127.0.0.1:8080/in/acme/github --source acme/github --type push --body push.json",
    ),
    (
        "hookgate send",
        "hookgate send http://127.0.0.1:8080/in/acme/partner --source acme/partner --data '{}' --count 100 --concurrency 8",
    ),
    ("hookgate serve", "hookgate serve"),
    ("hookgate serve", "hookgate serve --config /etc/hookgate.toml --log-format json"),
    ("hookgate sign", "hookgate sign --scheme stripe --secret env:STRIPE_SECRET --body event.json"),
    (
        "hookgate sign",
        "hookgate sign --source acme/github --type push --data '{}' --curl http://127.0.0.1:8080/in/acme/github",
    ),
    ("hookgate source rejections", "hookgate source rejections --source github --reason signature_mismatch --since 1h"),
    ("hookgate source list-schemes", "hookgate source list-schemes"),
    ("hookgate source explain", "hookgate source explain stripe"),
    ("hookgate source list", "hookgate source list"),
    ("hookgate source get", "hookgate source get github"),
    ("hookgate source forget-secret", "hookgate source forget-secret asana"),
    ("hookgate stats", "hookgate stats"),
    ("hookgate stats", "hookgate stats --endpoint billing --window 7d --bucket 1h --json"),
    ("hookgate tail", "hookgate tail --endpoint billing --json"),
    (
        "hookgate verify",
        "hookgate verify --scheme stripe --secret env:STRIPE_SECRET --request pasted.http --now 2026-01-31T08:00:00Z",
    ),
    ("hookgate verify", "hookgate verify --source acme/partner --request - --json"),
    (
        "hookgate verify",
        "hookgate verify --scheme paypal --param webhook_id=8PT597110X687430LKGECATA --secret file:cert.pem --request r.http",
    ),
    ("hookgate verify", "hookgate verify --cases cases.json"),
];

fn examples(name: &str) -> Vec<&'static str> {
    EXAMPLES.iter().filter(|(of, _)| *of == name).map(|(_, line)| *line).collect()
}

/// The command line with the examples in its help.
pub(super) fn with_examples(command: Command) -> Command {
    taught(command, "")
}

fn taught(command: Command, above: &str) -> Command {
    let name = format!("{above}{}", command.get_name());
    let lines = examples(&name);
    let command =
        if lines.is_empty() { command } else { command.after_help(format!("Examples:\n  {}", lines.join("\n  "))) };
    command.mut_subcommands(|inner| taught(inner, &format!("{name} ")))
}

/// The whole page.
pub fn reference() -> String {
    let mut root = Cli::command();
    root.build();
    let mut page = format!("# Command line\n\n{INTRO}\n## Exit codes\n\n| code | meaning |\n|---|---|\n");
    for (exit, text) in EXITS {
        let _ = writeln!(page, "| {} | {text} |", exit.code());
    }
    page.push_str("\n## Options of every command\n\n");
    options(&mut page, root.get_arguments().filter(|arg| arg.is_global_set()));
    for command in root.get_subcommands().filter(|command| command.get_name() != "help") {
        chapter(&mut page, "hookgate", command);
    }
    page
}

fn chapter(page: &mut String, above: &str, command: &Command) {
    let name = format!("{above} {}", command.get_name());
    if command.has_subcommands() {
        let inner = command.get_subcommands().filter(|inner| inner.get_name() != "help");
        inner.for_each(|inner| chapter(page, &name, inner));
        return;
    }
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let _ = write!(page, "\n## `{name}`\n\n{about}.\n\n```text\n{usage}\n```\n");
    let own: Vec<&Arg> = command.get_arguments().filter(|arg| !arg.is_global_set() && arg.get_id() != "help").collect();
    if !own.is_empty() {
        page.push('\n');
        options(page, own.into_iter());
    }
    if let Some((_, note)) = NOTES.iter().find(|(of, _)| *of == name) {
        let _ = write!(page, "\n{note}\n");
    }
    let examples = examples(&name);
    if !examples.is_empty() {
        let _ = write!(page, "\n```sh\n{}\n```\n", examples.join("\n"));
    }
}

fn options<'a>(page: &mut String, args: impl Iterator<Item = &'a Arg>) {
    page.push_str("| option | default | |\n|---|---|---|\n");
    for arg in args {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        // A default that is found out at run time stands in the help.
        let (help, found) = match help.split_once(" [default: ") {
            Some((help, found)) => (help, found.trim_end_matches(']')),
            None => (help.as_str(), ""),
        };
        let (help, variable) = match help.split_once(" [env: ") {
            Some((help, variable)) => (help, format!("; or the variable `{}`", variable.trim_end_matches(']'))),
            None => (help, String::new()),
        };
        let words: Vec<String> =
            arg.get_possible_values().iter().map(|word| format!("`{}`", word.get_name())).collect();
        let words = if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) };
        let defaults = arg.get_default_values().iter().filter(|_| arg.get_action().takes_values());
        let written: Vec<String> = defaults.map(|v| format!("`{}`", v.display())).collect();
        let default = if written.is_empty() { found.to_owned() } else { written.join(", ") };
        let row = format!("| {} | {default} | {help}{words}{variable} |", written_as(arg));
        let _ = writeln!(page, "{row}");
    }
}

/// The option as it is typed, `|` being a column's end in the table.
fn written_as(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let values: Vec<String> = names.iter().map(|name| format!("<{name}>")).collect();
    let value = if arg.get_action().takes_values() { values.join(" ") } else { String::new() };
    let text = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long} {value}"),
        (None, Some(long)) => format!("--{long} {value}"),
        (Some(short), None) => format!("-{short} {value}"),
        (None, None) => value,
    };
    format!("`{}`", text.trim_end().replace('|', "\\|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_the_file() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, reference()).unwrap();
        }
        let file = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(file == reference(), "docs/cli.md is out of date: run this test with UPDATE_GOLDEN=1");
    }

    /// Words as a shell would make them, for as much quoting as the examples use.
    fn words(line: &str) -> Vec<String> {
        let mut all = vec![String::new()];
        let mut quoted = false;
        for c in line.chars() {
            match c {
                '\'' => quoted = !quoted,
                ' ' if !quoted => all.push(String::new()),
                c => all.last_mut().unwrap().push(c),
            }
        }
        assert!(!quoted, "{line}");
        all
    }

    #[test]
    fn every_example_is_a_command_line_of_its_command() {
        for (name, line) in EXAMPLES {
            assert!(line.starts_with(name), "{line}");
            let parsed = Cli::command().try_get_matches_from(words(line));
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
        let page = reference();
        let commands = page.lines().filter_map(|line| line.strip_prefix("## `")?.strip_suffix('`'));
        let without: Vec<&str> = commands.filter(|name| examples(name).is_empty()).collect();
        assert!(without.is_empty(), "no example of {without:?}");
        for (name, _) in NOTES {
            assert!(page.contains(&format!("## `{name}`")), "{name}");
        }
    }

    #[test]
    fn exit_codes_are_told_in_order() {
        assert!(EXITS.iter().enumerate().all(|(code, (exit, _))| usize::from(exit.code()) == code));
    }
}
