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
        ("go-http", Speaks::Http1, |_| {
            Ok(vec![Recipe::GO_HTTP.make(&cache())?.into()])
        }),
        ("go-grpc", Speaks::Grpc, |_| {
            Ok(vec![Recipe::GO_GRPC.make(&cache())?.into()])
        }),
        ("python-http", Speaks::Http1, |_| {
            script("python3", "servers/python/http_server.py")
        }),
        ("python-asyncio", Speaks::Http1, |_| {
            script("python3", "servers/python/asyncio_server.py")
        }),
        ("python-gunicorn", Speaks::Http1, gunicorn),
        ("node-http", Speaks::Http1, |_| {
            script("node", "servers/node/http.mjs")
        }),
        ("node-http2", Speaks::Http2, |_| {
            script("node", "servers/node/http2.mjs")
        }),
        ("java-http", Speaks::Http1, java),
        ("rust-hyper", Speaks::Http1, |_| hyper_server()),
        ("c-epoll", Speaks::Http1, |_| {
            Ok(vec![Recipe::C_EPOLL.make(&cache())?.into()])
        }),
        ("nginx", Speaks::Http1, nginx),
    ];
    kinds
        .into_iter()
        .map(|(name, speaks, make)| {
            tell(world, name, Needs::Machine, async move |_| {
                check(name, speaks, make).await
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
    if speaks != Speaks::Grpc {
        ensure!(other.contains("original /"), "{other:?}");
    }
    ensure!(!other.contains(name), "{other:?}");
    // Each of several workers, and connections that are kept open.
    for _ in 0..6 {
        let answer = ask(&target, speaks, true)?;
        let count = answer.matches(&expected).count();
        ensure!(count == 3, "{count} of 3: {answer:?}\n{}", session.report());
    }
    Ok(())
}

/// Three requests over one connection, with the header or without. Answers and their headers.
fn ask(target: &Target, speaks: Speaks, mine: bool) -> Result<String> {
    let mut curl = target.outside("curl");
    curl.args(["--silent", "--show-error", "--max-time", "20"]);
    if mine {
        curl.args(["-H", MINE]);
    }
    let path = match speaks {
        Speaks::Http1 => "/",
        Speaks::Http2 => {
            curl.arg("--http2-prior-knowledge");
            "/"
        }
        // An empty message, which asks for the whole server.
        Speaks::Grpc => {
            curl.args(["--http2-prior-knowledge", "--dump-header", "-"]);
            curl.args([
                "--data-binary",
                "@-",
                "-H",
                "content-type: application/grpc",
                "-H",
                "te: trailers",
            ]);
            "/grpc.health.v1.Health/Check"
        }
    };
    let url = format!("http://{}:{}{path}", network::TARGET, network::APPLICATION);
    curl.args([&url, &url, &url]);
    if speaks == Speaks::Grpc {
        let empty = tempfile::NamedTempFile::new()?;
        fs::write(empty.path(), [0; 5])?;
        curl.stdin(fs::File::open(empty.path())?);
        let output = curl.output()?;
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Ok(lab::output_of(&mut curl)?)
}
