//! Unmodified servers in every language, as the stand-in: they serve the stolen requests and see the client's address.

use std::ffi::OsString;
use std::fs;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::fixture::{Program, Recipe, source};
use e2e::machine::{Target, hyper_server, network};
use e2e::{LazyEnvironment, Needs, scenario, until};
use libtest_mimic::Trial;
use tempfile::TempDir;

use super::support::{SessionProcess, cache, programs};

const MINE: &str = "x-session: mine";

/// The protocol of a server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
    Grpc,
}

/// Finds or compiles a server, which may need its own folder.
type FindServer = fn(&TempDir) -> Result<Vec<OsString>>;

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    let kinds: [(&str, Protocol, FindServer); 11] = [
        ("servers::go-http", Protocol::Http1, |_| {
            Ok(vec![Recipe::GO_HTTP.compile(&cache())?.into()])
        }),
        ("servers::go-grpc", Protocol::Grpc, |_| {
            Ok(vec![Recipe::GO_GRPC.compile(&cache())?.into()])
        }),
        ("servers::python-http", Protocol::Http1, |_| {
            script("python3", "servers/python/http_server.py")
        }),
        ("servers::python-asyncio", Protocol::Http1, |_| {
            script("python3", "servers/python/asyncio_server.py")
        }),
        ("servers::python-gunicorn", Protocol::Http1, gunicorn),
        ("servers::node-http", Protocol::Http1, |_| {
            script("node", "servers/node/http.mjs")
        }),
        ("servers::node-http2", Protocol::Http2, |_| {
            script("node", "servers/node/http2.mjs")
        }),
        ("servers::java-http", Protocol::Http1, java),
        ("servers::rust-hyper", Protocol::Http1, |_| hyper_server()),
        ("servers::c-epoll", Protocol::Http1, |_| {
            Ok(vec![Recipe::C_EPOLL.compile(&cache())?.into()])
        }),
        ("servers::nginx", Protocol::Http1, nginx),
    ];
    kinds
        .into_iter()
        .map(|(name, protocol, find_server)| {
            scenario(environment, name, Needs::Machine, async move |_| {
                check(name.trim_start_matches("servers::"), protocol, find_server).await
            })
        })
        .collect()
}

fn script(interpreter: &str, path: &str) -> Result<Vec<OsString>> {
    Ok(Program::script(interpreter, path).command)
}

fn gunicorn(_: &TempDir) -> Result<Vec<OsString>> {
    let folder = source("servers/python");
    let first = ["gunicorn", "--workers", "3", "--chdir"].map(OsString::from);
    let rest = ["wsgi:application", "--bind"].map(OsString::from);
    Ok([first.as_slice(), &[folder.into()], &rest].concat())
}

fn java(_: &TempDir) -> Result<Vec<OsString>> {
    let classes = Recipe::JAVA_SERVER.compile(&cache())?;
    Ok(vec![
        "java".into(),
        "-cp".into(),
        classes.into(),
        "Server".into(),
    ])
}

fn nginx(folder: &TempDir) -> Result<Vec<OsString>> {
    let text = fs::read_to_string(source("servers/nginx/nginx.conf.in"))?;
    let path = folder.path().to_str().context("the path is not UTF-8")?;
    let text = text.replace("FOLDER", path);
    let text = text.replace("PORT", &network::APPLICATION.to_string());
    let configuration = folder.path().join("nginx.conf");
    fs::write(&configuration, text)?;
    Ok(vec![
        "nginx".into(),
        "-p".into(),
        path.into(),
        "-c".into(),
        configuration.into(),
    ])
}

async fn check(name: &str, protocol: Protocol, find_server: FindServer) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut command = find_server(&folder)?;
    match name {
        "nginx" => {}
        "python-gunicorn" => command.push(format!("0.0.0.0:{}", network::APPLICATION).into()),
        _ => command.push(network::APPLICATION.to_string().into()),
    }
    let target = Target::start()?;
    let session = SessionProcess::start(
        programs()?.exec(&target, &command),
        &[
            ("INCOMING", "steal"),
            ("INCOMING_HEADER_FILTER", "^x-session: mine$"),
            // Servers use local users and folders.
            ("FS_MODE", "local"),
        ],
    )?;
    let expected = format!("{name} serves {}", network::CLIENT);
    let responded = until("a response of the server", async || {
        let response = request(&target, protocol, true)?;
        ensure!(response.contains(&expected), "the response is {response:?}");
        Ok(Some(()))
    });
    responded.await.with_context(|| session.report())?;
    let other = request(&target, protocol, false)?;
    // The application has no such gRPC method, but responds with status 200.
    let responded = match protocol {
        Protocol::Grpc => other.matches("200").count(),
        _ => other.matches("original /").count(),
    };
    ensure!(responded == 3 && !other.contains(name), "{other:?}");
    // Repeated for servers with several workers and for connections that stay open.
    for _ in 0..6 {
        let response = request(&target, protocol, true)?;
        let count = response.matches(&expected).count();
        ensure!(
            count == 3,
            "{count} of 3: {response:?}\n{}",
            session.report()
        );
    }
    Ok(())
}

/// Sends three requests over one connection, with the header or without. Returns the responses.
fn request(target: &Target, protocol: Protocol, mine: bool) -> Result<String> {
    let server = format!("http://{}:{}", network::TARGET, network::APPLICATION);
    let mut client = match protocol {
        Protocol::Http1 => {
            let mut curl = target.in_peer_network("curl");
            curl.args(["--silent", "--show-error", "--max-time", "20"]);
            curl.args([&server, &server, &server]);
            curl.args(mine.then_some("-H"));
            curl
        }
        Protocol::Http2 | Protocol::Grpc => {
            let mut node = target.in_peer_network("node");
            node.arg(source("servers/node/client.mjs")).arg(&server);
            node.args(match protocol {
                Protocol::Grpc => ["/grpc.health.v1.Health/Check", "grpc"],
                _ => ["/", "none"],
            });
            node
        }
    };
    let response = lab::output_of(client.args(mine.then_some(MINE)))?;
    // A dual-stack socket reports IPv4 addresses in this form.
    Ok(response.replace("::ffff:", ""))
}
