#!/usr/bin/env python3
"""The providers' own SDKs against hookgate, both ways: what they sign is verified, what it signs they verify, and
neither takes a body that was changed on the way.

    tests/interop/run.py [HOOKGATE]         the binary; target/debug/hookgate unless named

Installs the pinned SDKs into a folder of its own, which goes at the end; INTEROP_DIR names one that stays.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
HOOKGATE = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else HERE.parent.parent / "target/debug/hookgate").resolve()
URL = "https://hooks.example.com/in/acme/interop?a=1&b=%20c"
WHSEC = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
TEXT = "a-secret-that-both-sides-know"
JSON_BODIES = [
    '{"id":"evt_1","type":"invoice.paid","amount":1.0}',
    '{ "id" : "evt_2",\r\n\t"text" : "zażółć gęślą 😀 \\u00fc \\/", "n": [1e3, -0.0, null] }\n',
    '{"id":"evt_3","text":"' + "x" * 70_000 + '"}',
]
FORM_BODIES = [
    "CallSid=CA1&Caller=%2B12349013030&Digits=1234&From=%2B12349013030&To=%2B18005551212",
    "Body=za%C5%BC%C3%B3%C5%82%C4%87+%F0%9F%98%80&Empty=&A=z&a=Z",
]

# Registry, SDK, scheme, secret, bodies.
ROWS = [
    ("npm", "standardwebhooks", "standard-webhooks", WHSEC, JSON_BODIES),
    ("npm", "svix", "svix", WHSEC, JSON_BODIES),
    ("npm", "stripe", "stripe", "whsec_" + TEXT, JSON_BODIES),
    ("npm", "@octokit/webhooks-methods", "github", TEXT, JSON_BODIES),
    ("npm", "@slack/bolt", "slack", TEXT, JSON_BODIES),
    ("npm", "twilio", "twilio", TEXT, FORM_BODIES),
    ("PyPI", "standardwebhooks", "standard-webhooks", WHSEC, JSON_BODIES),
    ("PyPI", "svix", "svix", WHSEC, JSON_BODIES),
    ("PyPI", "stripe", "stripe", "whsec_" + TEXT, JSON_BODIES),
    ("PyPI", "slack-sdk", "slack", TEXT, JSON_BODIES),
    ("PyPI", "twilio", "twilio", TEXT, FORM_BODIES),
]


class Differs(Exception):
    """One side says something else than the other."""


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")


def install(folder):
    """The SDKs, and a running program for each registry."""
    npm = folder / "npm"
    npm.mkdir(exist_ok=True)
    for file in ["package.json", "sdk.mjs"]:
        shutil.copy(HERE / file, npm)
    run("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock", cwd=npm)
    python = folder / "venv/bin/python"
    if not python.exists():
        run(sys.executable, "-m", "venv", folder / "venv")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", HERE / "requirements.txt")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
    return {
        "npm": subprocess.Popen(["node", "sdk.mjs"], cwd=npm, **pipes),
        "PyPI": subprocess.Popen([python, HERE / "sdk.py"], **pipes),
    }


def ask(program, **question):
    program.stdin.write(json.dumps(question) + "\n")
    program.stdin.flush()
    answer = program.stdout.readline()
    if not answer:
        sys.exit(f"the SDK's program ended at {question['sdk']} {question['verb']}")
    return json.loads(answer)


def hookgate(*args, data=""):
    env = {"PATH": os.environ["PATH"], "NO_COLOR": "1"}
    return subprocess.run([HOOKGATE, *args], input=data.encode(), capture_output=True, env=env, check=False)


def verified(scheme, secret, headers, body):
    """Whether hookgate takes the request; else the code that it refuses it with."""
    request = json.dumps({"method": "POST", "url": URL, "headers": headers, "body": body})
    done = hookgate("verify", "--scheme", scheme, "--secret", secret, "--request", "-", "--json", data=request)
    if done.returncode not in (0, 8):
        raise Differs(f"hookgate verify exits with {done.returncode}: {done.stderr.decode()}")
    told = json.loads(done.stdout)
    if told["valid"] != (done.returncode == 0):
        raise Differs(f"hookgate verify exits with {done.returncode} and says {told}")
    return True if told["valid"] else told["code"]


def changed(body):
    return body[0] + " " + body[1:]


def sdk_to_hookgate(program, sdk, scheme, secret, bodies):
    for number, body in enumerate(bodies):
        now = int(time.time())
        question = {"secret": secret, "id": f"msg_{number}", "now": now, "url": URL, "body": body}
        signed = ask(program, sdk=sdk, verb="sign", **question)
        if signed.get("unable"):
            return "-"
        verdict = verified(scheme, secret, signed["headers"], body)
        if verdict is not True:
            raise Differs(f"hookgate refuses body {number}: {verdict}")
        verdict = verified(scheme, secret, signed["headers"], changed(body))
        if verdict != "signature_mismatch":
            raise Differs(f"hookgate says {verdict} to body {number} after it was changed")
        verdict = verified(scheme, secret[:-1] + "A", signed["headers"], body)
        if verdict != "signature_mismatch":
            raise Differs(f"hookgate says {verdict} with another secret")
    return "agree"


def hookgate_to_sdk(program, sdk, scheme, secret, bodies):
    content_type = "application/x-www-form-urlencoded" if bodies is FORM_BODIES else "application/json"
    for number, body in enumerate(bodies):
        args = ["sign", "--scheme", scheme, "--secret", secret, "--body", "-", "--json", "--url", URL]
        done = hookgate(*args, "--content-type", content_type, data=body)
        if done.returncode != 0:
            raise Differs(f"hookgate sign exits with {done.returncode}: {done.stderr.decode()}")
        headers = json.loads(done.stdout)["headers"]
        question = {"secret": secret, "url": URL, "headers": headers}
        answer = ask(program, sdk=sdk, verb="verify", body=body, **question)
        if answer.get("unable"):
            return "-"
        if not answer["valid"]:
            raise Differs(f"the SDK refuses body {number}")
        if ask(program, sdk=sdk, verb="verify", body=changed(body), **question)["valid"]:
            raise Differs(f"the SDK takes body {number} after it was changed")
    return "agree"


def main():
    if not HOOKGATE.exists():
        sys.exit(f"{HOOKGATE} is not there: build it with `cargo build --locked`, or name another")
    known = hookgate("source", "list-schemes", "--quiet").stdout.decode().split()
    if "stripe" not in known:
        sys.exit("hookgate lists no schemes")
    given = os.environ.get("INTEROP_DIR")
    folder = pathlib.Path(given or tempfile.mkdtemp(prefix="hookgate-interop-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    programs = {}
    table, notes = [], []
    try:
        programs = install(folder)
        for registry, sdk, scheme, secret, bodies in ROWS:
            verdicts = []
            for direction in (sdk_to_hookgate, hookgate_to_sdk):
                if scheme not in known:
                    verdicts.append("skipped")
                    continue
                try:
                    verdicts.append(direction(programs[registry], sdk, scheme, secret, bodies))
                except Differs as why:
                    verdicts.append("DIFFER")
                    notes.append(f"{registry} {sdk}, {direction.__name__}: {why}")
            if scheme not in known:
                notes.append(f"skipped: {registry} {sdk}, for this hookgate does not know the scheme `{scheme}`")
            table.append((registry, sdk, scheme, *verdicts))
    finally:
        for program in programs.values():
            program.stdin.close()
            program.wait(timeout=10)
        if not given:
            shutil.rmtree(folder)
    rows = [("REGISTRY", "SDK", "SCHEME", "SDK SIGNS", "HOOKGATE SIGNS"), *table]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    for note in notes:
        print(note)
    verdicts = [verdict for row in table for verdict in row[3:]]
    print(f"{verdicts.count('agree')} agree, {verdicts.count('DIFFER')} differ, {verdicts.count('skipped')} skipped; "
          "- is what the SDK has no call for")
    return 1 if "DIFFER" in verdicts or verdicts.count("agree") < 10 else 0


sys.exit(main())
