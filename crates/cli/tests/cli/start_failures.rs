//! Sessions that cannot start, each with a message that names the next step.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use link::http2::Windows;
use link::{Accepted, LinkServer, ServerSettings, SharedToken, Token};
use protocol::rpc::control_server::{Control, ControlServer};
use protocol::rpc::{HelloRequest, HelloResponse, PingRequest, PingResponse, Version};
use tonic::{Request, Response, Status};

use crate::support::{ProcessOutput, Standin, Target, agent_program};

#[test]
fn missing_targets() {
    let standin = Standin::new();
    for (target, expected) in [
        (
            "process/4194303",
            &["there is no process 4194303", "pgrep"][..],
        ),
        ("nonsense", &["process/<pid>"]),
        ("deployment/checkout", &["the kubeconfig cannot be used"]),
    ] {
        standin
            .run(["exec", "-t", target, "--", "true"])
            .expect(125)
            .expect_stderr(expected);
    }
    standin
        .run(["exec", "--", "true"])
        .expect(125)
        .expect_stderr(&["name a target"]);
    standin
        .run([
            "exec",
            "-t",
            "deployment/checkout",
            "--operator",
            "--no-operator",
            "--",
            "true",
        ])
        .expect(2);
    standin.run(["exec", "-t", "process/1"]).expect(2);
    let mut zombie = Target::new();
    zombie.end();
    standin
        .run(["exec", "-t", &zombie.name(), "--", "true"])
        .expect(125)
        .expect_stderr(&["there is no process"]);
}

#[test]
fn agents_that_do_not_start() {
    let target = Target::new();
    for (script, expected) in [
        ("exit 0", "exited without a message"),
        (
            "echo 'standind: no room'; echo >&2 'standind: no room'; exit 1",
            "printed `standind: no room`",
        ),
        (
            "echo >&2 'standind: no room'; exit 1",
            "cannot start an agent for process/",
        ),
        ("echo >&2 'standind: no room'; exit 1", ": no room"),
        (
            "head -c 100000 /dev/zero; sleep 3600",
            "instead of its address",
        ),
        ("exec sleep 3600", "did not print its address within 10 s"),
    ] {
        let standin = Standin::new();
        let program = standin.write("standind", format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let standin = standin.with("STANDIN_AGENT_PROGRAM", &program);
        standin
            .run(["exec", "-t", &target.name(), "--", "true"])
            .expect(125)
            .expect_stderr(&[expected]);
    }
    let standin = Standin::new().with("STANDIN_AGENT_PROGRAM", "/nowhere/standind");
    let ended = standin.run(["exec", "-t", &target.name(), "--", "true"]);
    ended.expect(125).expect_stderr(&[
        "cannot start the agent's program /nowhere/standind",
        "No such file",
    ]);
}

#[test]
fn a_session_inside_of_a_session_is_refused() {
    let (standin, target) = (Standin::new(), Target::new());
    let inner = format!(
        "{} exec -t {} -- true",
        env!("CARGO_BIN_EXE_standin"),
        target.name()
    );
    let mut command = standin.session(&target.name(), &[], &inner);
    let ended = ProcessOutput::from(command.output().unwrap());
    ended.expect(125).expect_stderr(&[
        "this process is itself supervised",
        "outside of the first `standin exec`",
    ]);
}

/// An agent that is not started by the session.
pub(crate) struct ExistingAgent {
    process: Child,
    pub(crate) address: String,
    log: tempfile::NamedTempFile,
}

impl ExistingAgent {
    pub(crate) fn start(target: &Target, listen: &str) -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut process = Command::new(agent_program())
            .args([
                "agent",
                "--process",
                target.name().trim_start_matches("process/"),
            ])
            .args(["--listen", listen])
            .env("STANDIN_AGENT_TOKEN", "secret-of-the-test")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.reopen().unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .unwrap()
            .to_owned();
        ExistingAgent {
            process,
            address,
            log,
        }
    }

    pub(crate) fn process(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log.path()).unwrap()
    }

    pub(crate) fn end(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for ExistingAgent {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn unusable_agents() {
    let target = Target::new();
    let agent = ExistingAgent::start(&target, "127.0.0.1:0");
    let standin = Standin::new().with("STANDIN_AGENT_TOKEN", "secret-of-the-test");
    let run =
        |standin: &Standin, address: &str| standin.run(["exec", "--agent", address, "--", "true"]);
    run(&standin, &agent.address)
        .expect(0)
        .expect_stderr(&["standing in for the target of the agent at 127.0.0.1:"]);
    let ended = standin.run(["exec", "--agent", &agent.address, "--", "env"]);
    assert!(!ended.stdout.contains("secret-of-the-test"), "{ended:?}");
    run(&standin, "nonsense")
        .expect(125)
        .expect_stderr(&["--agent nonsense is not a host and a port"]);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    run(&standin, &address)
        .expect(125)
        .expect_stderr(&["cannot be reached", "Check that it runs"]);

    let standin = standin.with("STANDIN_AGENT_TOKEN", "another-secret");
    let refused = run(&standin, &agent.address);
    refused
        .expect(125)
        .expect_stderr(&["does not accept the token", "Set STANDIN_AGENT_TOKEN"]);
    assert!(!refused.stderr.contains("another-secret"));
    let standin = Standin::new();
    run(&standin, &agent.address)
        .expect(125)
        .expect_stderr(&["set STANDIN_AGENT_TOKEN to the token"]);
}

/// An agent of a newer release.
struct NewerAgent;

#[tonic::async_trait]
impl Control for NewerAgent {
    async fn hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        Ok(Response::new(HelloResponse {
            version: Some(Version { major: 9, minor: 0 }),
            agent: "standind 9.9.9".to_owned(),
            ..HelloResponse::default()
        }))
    }

    async fn ping(&self, _: Request<PingRequest>) -> Result<Response<PingResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

#[test]
fn the_error_for_an_incompatible_agent_names_both_versions() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listener = runtime
        .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
        .unwrap();
    let address = listener.local_addr().unwrap().to_string();
    runtime.spawn(async move {
        let token = SharedToken(Token::new(b"secret".as_slice()).unwrap());
        let server = LinkServer::new(ServerSettings::default(), token);
        let (pipe, _) = listener.accept().await.unwrap();
        let Accepted::New(link) = server.accept(pipe).await.unwrap() else {
            panic!("the link was resumed");
        };
        let service = ControlServer::new(NewerAgent);
        let _ = link::http2::serve(link, Windows::default(), service, std::future::pending()).await;
    });
    let standin = Standin::new().with("STANDIN_AGENT_TOKEN", "secret");
    let ended = standin.run(["exec", "--agent", &address, "--", "true"]);
    ended.expect(125).expect_stderr(&[
        "version 1 of the protocol",
        "standind 9.9.9",
        "version 9",
        "install the same release",
    ]);
}

#[test]
#[ignore = "needs root"]
fn a_missing_right_is_named() {
    let standin = Standin::new();
    let folder = standin.folder.path();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let own = |name: &str, from: &str| {
        let path = folder.join(name);
        fs::copy(from, &path).unwrap();
        path
    };
    let program = own("standin", env!("CARGO_BIN_EXE_standin"));
    own("standind", agent_program().to_str().unwrap());
    let run_unprivileged = |target: &str| {
        let mut command = Command::new(&program);
        command
            .args(["exec", "-t", target, "--", "true"])
            .uid(65534)
            .gid(65534);
        standin.configure(&mut command);
        command.env_remove("STANDIN_AGENT_PROGRAM");
        ProcessOutput::from(command.output().unwrap())
    };
    let roots = Target::new();
    run_unprivileged(&roots.name()).expect(125).expect_stderr(&[
        "SYS_PTRACE",
        "sudo",
        "Permission denied",
    ]);
}
