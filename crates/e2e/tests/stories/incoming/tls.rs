//! A target whose application speaks TLS.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::{fs, io::BufRead as _, io::BufReader};

use anyhow::{Context as _, Result, ensure};
use e2e::fixture::Program;
use e2e::machine::{Target, network};
use e2e::{Story, until};
use tempfile::TempDir;

use super::super::surroundings::{Running, programs};
use super::MINE;

const PORT: u16 = 8443;
/// The name in the certificate, by which clients ask.
const NAME: &str = "checkout.shop.test";

/// A certificate and its key, in a folder.
fn certificate() -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    fs::write(folder.path().join("tls.crt"), made.cert.pem())?;
    let key = made.signing_key.serialize_pem();
    fs::write(folder.path().join("tls.key"), key)?;
    Ok(folder)
}

fn server(name: &str, certificate: &Path) -> Result<Program> {
    let folder = certificate.to_str().context("the path")?;
    let server = Program::script("node", "servers/node/secure.mjs");
    Ok(server
        .argument(name.to_owned())
        .argument(folder.to_owned())
        .argument(PORT.to_string()))
}

/// The original, in the target's network. It ends with this value.
struct Original(Child);

impl Original {
    fn start(target: &Target, certificate: &Path) -> Result<Self> {
        let server = server("original", certificate)?;
        let mut process = Command::new("nsenter")
            .arg(format!("--net=/proc/{}/ns/net", target.pid()))
            .arg("--")
            .args(&server.command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().context("no output")?;
        let original = Original(process);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(line == "ready\n", "the original does not serve: {line:?}");
        Ok(original)
    }
}

impl Drop for Original {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a client gets that trusts nobody but who has this certificate.
fn ask(target: &Target, trusted: &Path, arguments: &[&str]) -> Result<String> {
    let mut curl = target.outside("curl");
    curl.args(["--silent", "--show-error", "--max-time", "20"])
        .args([
            "--resolve",
            &format!("{NAME}:{PORT}:{}", network::TARGET),
            "--cacert",
        ])
        .arg(trusted.join("tls.crt"))
        .arg(format!("https://{NAME}:{PORT}/"))
        .args(arguments);
    Ok(lab::output_of(&mut curl)?)
}

pub(super) async fn requests_inside_tls_are_split(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let (theirs, ours) = (certificate()?, certificate()?);
    for file in ["tls.crt", "tls.key"] {
        let content = fs::read(theirs.path().join(file))?;
        target.write(&format!("/etc/tls/{file}"), content)?;
    }
    let _original = Original::start(&target, theirs.path())?;
    let settings = theirs.path().join("standin.yaml");
    let text = "feature:
  fs: local
  network:
    incoming:
      mode: steal
      http_filter: { header_filter: '^x-session: mine$' }
      tls: { certificate: /etc/tls/tls.crt, key: /etc/tls/tls.key }
";
    fs::write(&settings, text)?;
    let settings = settings.to_str().context("the path")?;
    let server = server("local", ours.path())?;
    let command = programs()?.exec(&target, &server.command);
    let session = Running::start(command, &[("CONFIG_FILE", settings)])?;
    let first = until("an answer of the program", async || {
        let answer = ask(&target, theirs.path(), &["-H", MINE])?;
        Ok(answer.starts_with("local ").then_some(()))
    });
    first.await.with_context(|| session.report())?;

    // Whoever answers, the client sees the target's certificate and speaks what it would speak with the application.
    for (option, version) in [("--http1.1", "1.1"), ("--http2", "2.0")] {
        let answer = ask(&target, theirs.path(), &[option, "-H", MINE])?;
        let expected = format!("local {version} {NAME} {}\n", network::CLIENT);
        ensure!(answer == expected, "{option}: {answer:?}");
        // The application gets TLS, too, with the name that the client asked for.
        let answer = ask(&target, theirs.path(), &[option])?;
        let expected = format!("original {version} {NAME} {}\n", network::TARGET);
        ensure!(answer == expected, "{option}: {answer:?}");
    }
    ensure!(ask(&target, ours.path(), &[]).is_err());

    // When the session has gone, everything is as before.
    session.kill()?;
    until("the original, without anybody between", async || {
        let answer = ask(&target, theirs.path(), &["-H", MINE])?;
        let expected = format!("original 2.0 {NAME} {}\n", network::CLIENT);
        Ok((answer == expected).then_some(()))
    })
    .await
}

/// A program that knows nothing of TLS.
pub(super) async fn a_program_without_tls_gets_what_was_inside(_: &Story<'_>) -> Result<()> {
    let target = Target::start()?;
    let theirs = certificate()?;
    for file in ["tls.crt", "tls.key"] {
        let content = fs::read(theirs.path().join(file))?;
        target.write(&format!("/etc/tls/{file}"), content)?;
    }
    let _original = Original::start(&target, theirs.path())?;
    let settings = theirs.path().join("standin.yaml");
    let text = "feature: {network: {incoming: {
        mode: steal,
        tls: {certificate: /etc/tls/tls.crt, key: /etc/tls/tls.key},
        tls_delivery: {protocol: tcp}}}}";
    fs::write(&settings, text)?;
    let settings = settings.to_str().context("the path")?;
    let session = super::serve(&target, PORT, &[("CONFIG_FILE", settings)])?;
    let answered = until("an answer of the program", async || {
        let answer = ask(&target, theirs.path(), &["--http1.1"])?;
        Ok((answer == super::LOCAL).then_some(()))
    });
    answered.await.with_context(|| session.report())
}
