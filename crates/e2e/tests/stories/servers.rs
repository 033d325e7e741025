//! Every kind of server stands in, unmodified: it answers what is stolen, and knows who asks.

use std::ffi::OsString;
use std::fs;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::fixture::{Program, Recipe, source};
use e2e::machine::{Target, hyper_server, network};
use e2e::{LaterWorld, Needs, tell, until};
use libtest_mimic::Trial;
use tempfile::TempDir;

use super::surroundings::{Running, cache, programs};

const MINE: &str = "x-session: mine";

/// How a server is spoken to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Speaks {
    Http1,
    Http2,
    Grpc,
}

/// Finds or compiles a server, which may need a folder of its own.
type Make = fn(&TempDir) -> Result<Vec<OsString>>;

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    let kinds: [(&str, Speaks, Make); 11] = [
        ("servers::go-http", Speaks::Http1, |_| {
            Ok(vec![Recipe::GO_HTTP.make(&cache())?.into()])
        }),
        ("servers::go-grpc", Speaks::Grpc, |_| {
            Ok(vec![Recipe::GO_GRPC.make(&cache())?.into()])
        }),
        ("servers::python-http", Speaks::Http1, |_| {
            script("python3", "servers/python/http_server.py")
        }),
        ("servers::python-asyncio", Speaks::Http1, |_| {
            script("python3", "servers/python/asyncio_server.py")
        }),
        ("servers::python-gunicorn", Speaks::Http1, gunicorn),
        ("servers::node-http", Speaks::Http1, |_| {
            script("node", "servers/node/http.mjs")
        }),
        ("servers::node-http2", Speaks::Http2, |_| {
            script("node", "servers/node/http2.mjs")
        }),
        ("servers::java-http", Speaks::Http1, java),
        ("servers::rust-hyper", Speaks::Http1, |_| hyper_server()),
        ("servers::c-epoll", Speaks::Http1, |_| {
            Ok(vec![Recipe::C_EPOLL.make(&cache())?.into()])
        }),
        ("servers::nginx", Speaks::Http1, nginx),
    ];
    kinds
        .into_iter()
        .map(|(name, speaks, make)| {
            tell(world, name, Needs::Machine, async move |_| {
                check(name.trim_start_matches("servers::"), speaks, make).await
            })
        })
        .collect()
}

fn script(interpreter: &str, path: &str) -> Result<Vec<OsString>> {
    Ok(Program::script(interpreter, path).command)
}

fn gunicorn(_: &TempDir) -> Result<Vec<OsString>> {
    let folder = source("servers/python");
    let words = ["gunicorn", "--workers", "3", "--chdir"].map(OsString::from);
    let rest = ["wsgi:application", "--bind"].map(OsString::from);
    Ok([words.as_slice(), &[folder.into()], &rest].concat())
}

fn java(_: &TempDir) -> Result<Vec<OsString>> {
    let classes = Recipe::JAVA_SERVER.make(&cache())?;
    Ok(vec![
        "java".into(),
        "-cp".into(),
        classes.into(),
        "Server".into(),
    ])
}

fn nginx(folder: &TempDir) -> Result<Vec<OsString>> {
    let text = fs::read_to_string(source("servers/nginx/nginx.conf.in"))?;
    let path = folder.path().to_str().context("the path")?;
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

async fn check(name: &str, speaks: Speaks, make: Make) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut command = make(&folder)?;
    match name {
        "nginx" => {}
        "python-gunicorn" => command.push(format!("0.0.0.0:{}", network::APPLICATION).into()),
        _ => command.push(network::APPLICATION.to_string().into()),
    }
    let target = Target::start()?;
    let session = Running::start(
        programs()?.exec(&target, &command),
        &[
            ("INCOMING", "steal"),
            ("INCOMING_HEADER_FILTER", "^x-session: mine$"),
            // Servers have users and folders of their own.
            ("FS_MODE", "local"),
        ],
    )?;
    let expected = format!("{name} serves {}", network::CLIENT);
    let answered = until("an answer of the server", async || {
        let answer = ask(&target, speaks, true)?;
        ensure!(answer.contains(&expected), "the answer is {answer:?}");
        Ok(Some(()))
    });
    answered.await.with_context(|| session.report())?;
    let other = ask(&target, speaks, false)?;
    // The application has no such method of gRPC, and answers all the same.
    let answered = match speaks {
        Speaks::Grpc => other.matches("200").count(),
        _ => other.matches("original /").count(),
    };
    ensure!(answered == 3 && !other.contains(name), "{other:?}");
    // Each of several workers, and connections that are kept open.
    for _ in 0..6 {
        let answer = ask(&target, speaks, true)?;
        let count = answer.matches(&expected).count();
        ensure!(count == 3, "{count} of 3: {answer:?}\n{}", session.report());
    }
    Ok(())
}

/// Three requests over one connection, with the header or without: the answers.
fn ask(target: &Target, speaks: Speaks, mine: bool) -> Result<String> {
    let server = format!("http://{}:{}", network::TARGET, network::APPLICATION);
    let mut client = match speaks {
        Speaks::Http1 => {
            let mut curl = target.outside("curl");
            curl.args(["--silent", "--show-error", "--max-time", "20"]);
            curl.args([&server, &server, &server]);
            curl.args(mine.then_some("-H"));
            curl
        }
        Speaks::Http2 | Speaks::Grpc => {
            let mut node = target.outside("node");
            node.arg(source("servers/node/client.mjs")).arg(&server);
            node.args(match speaks {
                Speaks::Grpc => ["/grpc.health.v1.Health/Check", "grpc"],
                _ => ["/", "none"],
            });
            node
        }
    };
    let answer = lab::output_of(client.args(mine.then_some(MINE)))?;
    // What a socket for both families shows of an address of the older one.
    Ok(answer.replace("::ffff:", ""))
}
