//! Sessions that are monitored and ended by another process.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{
    HttpResponse, RunningSession, Service, Standin, Target, is_alive, wait_until,
};

/// Starts a process that ignores SIGTERM, and prints its id.
const STUBBORN: &str = "cat /etc/hostname /nothing-here; bash -c 'trap \"\" TERM; while :; do sleep 0.1; done' & echo child $! >&2; \
                        echo here >&2; wait; sleep 3600";

fn sockets(standin: &Standin) -> Vec<PathBuf> {
    let entries = fs::read_dir(standin.path("sessions"));
    let paths = entries.into_iter().flatten().flatten();
    paths.map(|entry| entry.path()).collect()
}

fn json_of(standin: &Standin, arguments: &[&str]) -> Value {
    let ended = standin.run(arguments);
    ended.expect(0);
    serde_json::from_str(&ended.stdout).unwrap()
}

#[test]
fn a_session_is_listed_monitored_recorded_and_ended_with_all_its_processes() {
    let (standin, target) = (Standin::new(), Target::new());
    let recording = standin.path("recording");
    let options = ["--record", recording.to_str().unwrap()];
    let mut command = standin.session(&target.name(), &options, STUBBORN);
    command.stdout(Stdio::null());
    let mut session = RunningSession::start(command);
    session.wait_for_output("child ");
    let child = session
        .printed
        .lines()
        .last()
        .unwrap()
        .rsplit(' ')
        .next()
        .unwrap();
    let child: u32 = child.parse().unwrap();
    session.wait_for_output("here");

    let socket = sockets(&standin).remove(0);
    let mode = |path: &PathBuf| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&socket), 0o600);
    assert_eq!(mode(&standin.path("sessions")), 0o700);

    let listed = json_of(&standin, &["sessions", "--json"]);
    let info = &listed[0];
    assert_eq!(info["target"], target.name());
    assert_eq!(info["protocol_version"], 1);
    assert!(info["processes"].as_array().unwrap().len() >= 2, "{info}");
    let id = info["session_id"].as_str().unwrap();
    assert!(standin.run(["sessions"]).stdout.contains(id));

    let events = standin.run(["session", &id[..8], "events", "--json"]);
    let events: Vec<Value> = events
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let numbers: Vec<u64> = events
        .iter()
        .map(|event| event["seq"].as_u64().unwrap())
        .collect();
    assert!(
        numbers.is_sorted_by(|one, next| one + 1 == *next),
        "{numbers:?}"
    );
    let missing = |event: &&Value| event["path"] == "/nothing-here";
    assert_eq!(events.iter().find(missing).unwrap()["errno"], "ENOENT");
    let state = json_of(&standin, &["session", id, "state"]);
    assert!(state["counters"]["files"]["remote"].as_u64().unwrap() > 0);

    standin.run(["session", id, "kill"]).expect(0);
    let ended = session.wait();
    ended
        .expect(128 + 15)
        .expect_stderr(&["the session is ended from outside"]);
    wait_until("the child is gone", || !is_alive(child));
    assert!(sockets(&standin).is_empty());
    let recorded = fs::read_to_string(recording).unwrap();
    assert!(recorded.contains("/nothing-here") && recorded.contains(r#"{"line":"end""#));
}

#[test]
fn without_the_api_there_is_no_socket_and_stale_ones_are_removed() {
    let (standin, target) = (Standin::new().with("STANDIN_API", "false"), Target::new());
    let mut session =
        RunningSession::start(standin.session(&target.name(), &[], "echo here >&2; sleep 3600"));
    session.wait_for_output("here");
    assert!(sockets(&standin).is_empty());
    drop(session);

    fs::create_dir_all(standin.path("sessions")).unwrap();
    drop(UnixListener::bind(standin.path("sessions/stale.sock")).unwrap());
    let listed = standin.run(["sessions", "--json"]);
    assert_eq!(listed.stdout.trim(), "[]");
    assert!(sockets(&standin).is_empty());
}

#[test]
fn the_socket_is_an_http_server_and_removed_when_the_session_is_killed() {
    let (standin, target) = (Standin::new(), Target::new());
    let config = standin.write("config.json", "{}");
    let options = ["-f", config.to_str().unwrap()];
    let script = "echo here >&2; sleep 3600";
    let mut session = RunningSession::start(standin.session(&target.name(), &options, script));
    session.wait_for_output("here");
    let get = |path: &str| {
        let mut socket = UnixStream::connect(sockets(&standin).remove(0)).unwrap();
        HttpResponse::get(&mut socket, "session", path, "Accept: */*")
    };
    let health = get("/health");
    assert_eq!(
        (health.status, health.json()),
        (200, json!({"status": "healthy"}))
    );
    assert_eq!(get("/info").json()["config_path"], config.to_str().unwrap());
    assert_eq!(get("/nothing").status, 404);
    assert!(!listens_on_tcp(session.id()));
    session.signal(Signal::SIGKILL);
    wait_until("the socket is removed", || sockets(&standin).is_empty());
}

/// Whether the process has a TCP socket that listens.
fn listens_on_tcp(process: u32) -> bool {
    let tables = ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/net/{table}")));
    let tables = tables.into_iter().flatten().collect::<String>();
    let rows = tables.lines().map(|line| line.split_whitespace());
    let listeners =
        rows.filter_map(|mut fields| (fields.nth(3)? == "0A").then(|| fields.nth(5))?);
    let listeners: Vec<String> = listeners.map(|inode| format!("socket:[{inode}]")).collect();
    let descriptors = fs::read_dir(format!("/proc/{process}/fd"))
        .unwrap()
        .flatten();
    let mut files = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
    files.any(|file| {
        listeners
            .iter()
            .any(|listener| file.as_os_str() == listener.as_str())
    })
}

#[test]
fn a_session_without_its_socket_runs() {
    let (standin, target) = (Standin::new(), Target::new());
    standin.write("sessions", "a file");
    let ended = RunningSession::start(standin.session(&target.name(), &[], "exit 7")).wait();
    let warning = [
        "the session continues without its socket",
        "it is not a folder",
    ];
    ended.expect(7).expect_stderr(&warning);
}

/// Runs a program that exits at once, and a subshell that executes no program, and waits for both.
const SHORT_LIVED: &str = "/bin/true; (exit 3); /bin/true; echo here >&2; sleep 3600";

#[test]
fn short_lived_processes_are_reported_though_there_is_no_subscriber() {
    let (standin, target) = (Standin::new(), Target::new());
    let mut session = RunningSession::start(standin.session(&target.name(), &[], SHORT_LIVED));
    session.wait_for_output("here");
    let id = json_of(&standin, &["sessions", "--json"])[0]["session_id"].clone();
    let events = standin.run(["session", id.as_str().unwrap(), "events", "--json"]);
    let events: Vec<Value> = events
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of_type = |kind: &str| {
        let found = events.iter().filter(move |event| event["type"] == kind);
        found.cloned().collect::<Vec<_>>()
    };
    let started = of_type("LayerConnected");
    let names: Vec<_> = started.iter().map(|event| &event["process_name"]).collect();
    // The shell itself, and `sleep` if it runs already.
    assert_eq!(names[..4], ["bash", "true", "bash", "true"]);
    let ended: Vec<_> = of_type("LayerDisconnected");
    let ended: Vec<_> = ended.iter().map(|event| &event["pid"]).collect();
    let expected: Vec<_> = started[1..4].iter().map(|event| &event["pid"]).collect();
    assert_eq!(ended, expected);
}

#[test]
fn local_and_refused_paths_are_counted_once() {
    let (standin, target) = (Standin::new(), Target::new());
    let (local, hidden) = (
        standin.write("here/file", "x"),
        standin.write("hidden/file", "x"),
    );
    let rules =
        json!({"feature": {"fs": {"local": ["/here/file$"], "not_found": ["/hidden/file$"]}}});
    let config = standin.write("config.json", rules.to_string());
    let (local, hidden) = (local.to_str().unwrap(), hidden.to_str().unwrap());
    let script = format!("cat {local} {hidden}; echo here >&2; sleep 3600");
    let options = ["-f", config.to_str().unwrap()];
    let mut session = RunningSession::start(standin.session(&target.name(), &options, &script));
    session.wait_for_output("here");
    let id = json_of(&standin, &["sessions", "--json"])[0]["session_id"].clone();
    let state = json_of(&standin, &["session", id.as_str().unwrap(), "state"]);
    let rows = state["files"].as_array().unwrap();
    for (path, side) in [(local, "local"), (hidden, "refused")] {
        let of_path = rows.iter().filter(|row| row["path"] == path);
        let counts = of_path.map(|row| (row["side"].as_str().unwrap(), row["operations"].as_u64()));
        assert_eq!(counts.collect::<Vec<_>>(), [(side, Some(1))], "{path}");
    }
}

#[test]
fn mcp_clients_inspect_and_end_sessions() {
    let (standin, target) = (Standin::new(), Target::new());
    let mut session =
        RunningSession::start(standin.session(&target.name(), &[], "echo here >&2; sleep 3600"));
    session.wait_for_output("here");
    let id = json_of(&standin, &["sessions", "--json"])[0]["session_id"].clone();
    let call = |number: u32, name: &str, arguments: Value| json!({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": name, "arguments": arguments}});
    let lines = [
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-03-26"}}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}),
        call(3, "list_sessions", json!({})),
        call(4, "session_events", json!({"id": id})),
        call(5, "session_state", json!({"id": id, "section": "nonsense"})),
        call(6, "end_session", json!({"id": id})),
        json!({"jsonrpc": "2.0", "id": 7, "method": "nonsense"}),
    ];
    let mut command = standin.command(["mcp"]);
    let mut server = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = server.stdin.take().unwrap();
    for line in &lines {
        writeln!(input, "{line}").unwrap();
    }
    drop(input);
    let output = server.wait_with_output().unwrap().stdout;
    let responses: Vec<Value> = String::from_utf8(output)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(responses.len(), 7);
    assert_eq!(responses[0]["result"]["protocolVersion"], "2025-03-26");
    assert_eq!(responses[1]["result"]["tools"].as_array().unwrap().len(), 7);
    let text = |index: usize| {
        responses[index]["result"]["content"][0]["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(text(2).contains(&target.name()));
    assert!(text(3).contains("LayerConnected"), "{}", text(3));
    assert_eq!(responses[4]["result"]["isError"], true);
    assert!(text(5).contains("ended"));
    assert_eq!(responses[6]["error"]["code"], -32601);
    session.wait().expect(128 + 15);
}

/// Responds after the whole request: a server that responds sooner may reject the rest, which would not be counted.
const HTTP2_SERVER: &str = r#"
    require("http2").createServer((request, response) => {
        request.resume().on("end", () => {
            response.writeHead(request.url === "/broken" ? 503 : 200);
            response.end("from the program\n");
        });
    }).listen(8080)"#;

/// Requests the paths in its arguments, one after the other on one connection.
const HTTP2_CLIENT: &str = r#"
    const connection = require("http2").connect("http://127.0.0.1:8080");
    const send = (path) => new Promise((resolve) => {
        const stream = connection.request({ ":path": path, "x-user": "alice" });
        stream.pipe(process.stdout, { end: false });
        stream.on("end", resolve).end();
    });
    (async () => {
        for (const path of process.argv.slice(1)) await send(path);
        connection.close();
    })()"#;

#[test]
#[ignore = "needs root"]
fn http2_requests_are_separate_events() {
    let (standin, service) = (Standin::new(), Service::start(8080));
    let mut command = standin.command(["exec", "--steal", "-t"]);
    command.arg(service.name());
    command.args(["--", "node", "-e", HTTP2_SERVER]);
    let mut session = RunningSession::start(command);
    session.wait_for_output("everything goes to the program");
    let node = ["node", "-e", HTTP2_CLIENT];
    let paths = ["/cart/1", "/cart/2?all", "/broken", "/cart/1"];
    let bodies = service.run_client(&[&node[..], &paths].concat());
    assert_eq!(bodies, "from the program\n".repeat(4));
    // Headers that need more than one frame.
    let long = format!("X-Long: {}", "~".repeat(20_000));
    let mut curl = vec!["curl", "--silent", "--show-error"];
    curl.extend(["--http2-prior-knowledge", "--header", &long]);
    curl.extend(["--data", "one=two", "http://127.0.0.1:8080/orders"]);
    assert_eq!(service.run_client(&curl), "from the program\n");
    let listed = json_of(&standin, &["sessions", "--json"]);
    let id = listed[0]["session_id"].as_str().unwrap();
    let requests = || {
        let events = standin.run(["session", id, "events", "--json"]).stdout;
        let events = events
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let requests = events.filter(|event| event["type"] == "IncomingRequest");
        let shown = requests.map(|event| {
            let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
            format!(
                "{} {} {} {} {} {} {}",
                text("protocol"),
                text("method"),
                text("path"),
                event["status"],
                text("handling"),
                event["received"],
                event["sent"],
            )
        });
        shown.collect::<Vec<_>>()
    };
    wait_until("all requests are reported", || requests().len() == 5);
    let expected = [
        "HTTP/2 GET /cart/1 200 stolen 0 17",
        "HTTP/2 GET /cart/2?all 200 stolen 0 17",
        "HTTP/2 GET /broken 503 stolen 0 17",
        "HTTP/2 GET /cart/1 200 stolen 0 17",
        "HTTP/2 POST /orders 200 stolen 7 17",
    ];
    assert_eq!(requests(), expected);
}
