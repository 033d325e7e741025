//! `standin ui`: its address, the browser that it opens, and sessions that do not respond.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{
    HttpResponse, ProcessOutput, RunningSession, Service, Standin, Target, UNPRIVILEGED_UID,
    wait_until,
};

/// The running server. It ends with the test.
struct Ui {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
    /// With the token.
    url: String,
}

impl Ui {
    fn start(standin: &Standin, options: &[&str]) -> Self {
        let mut command = standin.command(["ui"]);
        command.args(options);
        Self::run(command)
    }

    fn run(mut command: Command) -> Self {
        // No cluster, regardless of the machine.
        command.env("KUBECONFIG", "/nonexistent");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("Session Monitor: ");
        let url = url.unwrap_or_else(|| panic!("{line:?}")).to_owned();
        Ui { child, stdout, url }
    }

    fn origin_and_token(&self) -> (&str, &str) {
        self.url.split_once("/?token=").unwrap()
    }

    fn get_with(&self, path: &str, header: &str) -> HttpResponse {
        let host = self.origin_and_token().0.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(host.replace("localhost", "127.0.0.1")).unwrap();
        HttpResponse::get(&mut stream, host, path, header)
    }

    fn get(&self, path: &str) -> HttpResponse {
        let token = self.origin_and_token().1;
        self.get_with(path, &format!("Authorization: Bearer {token}"))
    }

    fn sessions(&self) -> Vec<Value> {
        let list = self.get("/api/sessions").json();
        list.as_array().unwrap().clone()
    }

    /// The first line of standard error that contains this text.
    fn line_of_stderr(&mut self, expected: &str) -> String {
        let stderr = BufReader::new(self.child.stderr.take().unwrap());
        let mut lines = stderr.lines().map(Result::unwrap);
        lines.find(|line| line.contains(expected)).unwrap()
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn sleeping_session(standin: &Standin, target: &Target) -> RunningSession {
    let script = "echo here >&2; sleep 3600";
    let mut session = RunningSession::start(standin.session(&target.name(), &[], script));
    session.wait_for_output("here");
    session
}

/// `standin ui` with a program `xdg-open` that writes its arguments to a file.
fn start_with_opener(standin: &Standin, status: i32) -> (Ui, PathBuf) {
    let opened = standin.path("opened");
    let script = format!(
        "#!/bin/sh\necho \"$@\" >{0}.new && mv {0}.new {0}\nexit {status}\n",
        opened.display()
    );
    let opener = standin.write("bin/xdg-open", script);
    fs::set_permissions(&opener, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = standin.command(["ui", "--port", "0"]);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", standin.path("bin").display()));
    (Ui::run(command), opened)
}

#[test]
fn a_browser_gets_a_code_that_works_once_instead_of_the_token() {
    let standin = Standin::new();
    let (mut ui, opened) = start_with_opener(&standin, 0);
    let mut line = String::new();
    ui.stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "Opening browser...\n");
    wait_until("the browser is opened", || opened.exists());
    let opened = fs::read_to_string(opened).unwrap();
    let (origin, token) = ui.origin_and_token();
    assert!(!opened.contains(token), "{opened}");
    let with_code = opened.trim().strip_prefix(origin).unwrap();
    let first = ui.get_with(with_code, "Accept: */*");
    assert_eq!((first.status, first.header("location")), (303, Some("/")));
    let cookie = first.header("set-cookie").unwrap().split(';').next();
    let cookie = format!("Cookie: {}", cookie.unwrap());
    assert_eq!(ui.get_with("/api/sessions", &cookie).status, 200);
    assert_eq!(ui.get_with(with_code, "Accept: */*").status, 401);
}

#[test]
#[ignore = "needs root"]
fn a_code_is_worthless_for_other_users() {
    let standin = Standin::new();
    let (ui, opened) = start_with_opener(&standin, 0);
    wait_until("the browser is opened", || opened.exists());
    let url = fs::read_to_string(opened).unwrap();
    let status_for = |user: u32| {
        let mut command = Command::new("setpriv");
        command.args(["--clear-groups", &format!("--reuid={user}"), "curl"]);
        command.args(["--silent", "--noproxy", "*", "--output", "/dev/null"]);
        let output = command.args(["--write-out", "%{http_code}", url.trim()]);
        ProcessOutput::from(output.output().unwrap()).stdout
    };
    assert_eq!(status_for(UNPRIVILEGED_UID), "401");
    assert_eq!(status_for(0), "303");
    drop(ui);
}

#[test]
fn a_browser_that_cannot_be_opened_is_reported_with_the_address() {
    let standin = Standin::new();
    let (mut ui, _) = start_with_opener(&standin, 3);
    let line = ui.line_of_stderr("browser");
    let expected = format!(
        "standin: no browser could be opened (xdg-open: exit status: 3): open {}",
        ui.url
    );
    assert_eq!(line, expected);
    // The server runs nevertheless.
    assert_eq!(ui.get("/api/sessions").status, 200);
}

#[test]
#[ignore = "needs root"]
fn the_port_is_known_or_free_or_the_one_of_http_and_only_this_machine_is_served() {
    let (standin, network) = (Standin::new(), Service::start(8080));
    let start = |options: &[&str]| {
        let mut command = network.command(env!("CARGO_BIN_EXE_standin"));
        command.args(["ui", "--no-open"]).args(options);
        standin.configure(&mut command);
        Ui::run(command)
    };
    let (first, second, http) = (start(&[]), start(&[]), start(&["--port", "80"]));
    assert!(first.url.starts_with("http://localhost:59281/?token="));
    assert!(!second.url.contains(":59281/"), "{}", second.url);
    assert!(http.url.starts_with("http://localhost/?token="));
    let curl = |ui: &Ui, path: &str, more: &[&str]| {
        let (origin, token) = ui.origin_and_token();
        let bearer = format!("Authorization: Bearer {token}");
        let origin_header = format!("Origin: {origin}");
        let url = format!("{origin}{path}");
        let code = [
            "--silent",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code}",
        ];
        let headers = [
            "--noproxy",
            "*",
            "--header",
            &bearer,
            "--header",
            &origin_header,
            &url,
        ];
        network.run_client(&[&["curl"][..], &code, &headers, more].concat())
    };
    for ui in [&first, &second, &http] {
        assert_eq!(curl(ui, "/api/sessions", &[]), "200", "{}", ui.url);
    }
    let kill = "/api/sessions/none/kill";
    assert_eq!(curl(&http, kill, &["--request", "POST"]), "404");
    // Any address of the machine would reach a server that listens at all of them.
    let other = [
        "bash",
        "-c",
        "echo >/dev/tcp/127.0.0.2/59281 || echo refused",
    ];
    assert!(network.run_client(&other).contains("refused"));
}

#[test]
fn a_stopped_session_is_reported_and_delays_nothing() {
    let (standin, target) = (Standin::new(), Target::new());
    let session = sleeping_session(&standin, &target);
    let ui = Ui::start(&standin, &["--no-open", "--port", "0"]);
    wait_until("the session is listed", || !ui.sessions().is_empty());
    let id = ui.sessions()[0]["session_id"].as_str().unwrap().to_owned();
    let detail = || ui.get(&format!("/api/sessions/{id}"));
    assert_eq!(detail().status, 200);

    session.signal(Signal::SIGSTOP);
    wait_until("the session has stopped", || session.is_stopped());
    let response = detail();
    assert_eq!(response.status, 504, "{response:?}");
    assert!(response.body.contains("fg"), "{response:?}");
    wait_until("the list says so", || {
        ui.sessions()[0]["health"]["status"] == "unresponsive"
    });
    let listed = standin.run(["sessions", "--json"]);
    assert!(listed.stdout.contains("unresponsive"), "{listed:?}");
    session.signal(Signal::SIGCONT);
    wait_until("the session responds", || {
        detail().status == 200 && ui.sessions()[0]["health"]["status"] == "healthy"
    });
}

#[test]
fn a_session_that_crashes_disappears() {
    let (standin, target) = (Standin::new(), Target::new());
    let session = sleeping_session(&standin, &target);
    let ui = Ui::start(&standin, &["--no-open", "--port", "0"]);
    wait_until("the session is listed", || ui.sessions().len() == 1);
    session.signal(Signal::SIGKILL);
    wait_until("the session is not listed", || ui.sessions().is_empty());
}

#[test]
fn a_session_of_another_version_is_listed_as_such() {
    let standin = Standin::new();
    let info = json!({
        "protocol_version": 99, "standin_version": "9.9.9", "target": "pod/newer", "new": true, "health": "new",
    });
    fs::create_dir(standin.path("sessions")).unwrap();
    let listener = UnixListener::bind(standin.path("sessions/newer.sock")).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request);
            let body = info.to_string();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = stream.write_all((head + &body).as_bytes());
        }
    });
    let listed: Value = serde_json::from_str(&standin.run(["sessions", "--json"]).stdout).unwrap();
    assert_eq!(listed[0]["session_id"], "newer");
    assert_eq!(listed[0]["target"], "pod/newer");
    assert!(standin.run(["sessions"]).stdout.contains("other version"));
    let state = standin.run(["session", "newer", "state"]);
    state.expect(125).expect_stderr(&["release 9.9.9"]);
    let ui = Ui::start(&standin, &["--no-open", "--port", "0"]);
    wait_until("the session is listed", || {
        let sessions = ui.sessions();
        sessions
            .iter()
            .any(|info| info["health"]["status"] == "other_version")
    });
}

#[test]
fn an_unsafe_folder_is_refused_and_never_changed() {
    let standin = Standin::new();
    let folder = standin.path("shared");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let name = folder.to_str().unwrap();
    for command in [&["ui", "--no-open"][..], &["sessions"]] {
        let ended = standin.run([command, &["--sessions-dir", name]].concat());
        ended
            .expect(125)
            .expect_stderr(&["other users can write", "chmod go-w"]);
    }
    assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o7777, 0o777);
}

#[test]
fn the_page_of_a_development_server_is_served_without_sending_the_token_there() {
    let standin = Standin::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let ui = Ui::start(&standin, &["--no-open", "--port", "0", "--dev", &server]);
    let development = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        let length = stream.read(&mut request).unwrap();
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nthepage";
        stream.write_all(response).unwrap();
        String::from_utf8_lossy(&request[..length]).into_owned()
    });
    let path = format!("/?token={}", ui.origin_and_token().1);
    assert_eq!(ui.get_with(&path, "Accept: */*").body, "thepage");
    let request = development.join().unwrap();
    assert!(request.starts_with("GET / HTTP/1.1"), "{request}");
    assert!(!request.contains(ui.origin_and_token().1), "{request}");
}

#[test]
fn whether_there_is_an_operator_is_asked_and_not_inferred() {
    let standin = Standin::new();
    let ui = Ui::start(&standin, &["--no-open", "--port", "0"]);
    let version = || ui.get("/api/version").json();
    let first = version();
    assert_eq!(first["version"], env!("CARGO_PKG_VERSION"));
    wait_until("the kubeconfig is read", || {
        version()["operator"]["status"] == "not_configured"
    });
}
