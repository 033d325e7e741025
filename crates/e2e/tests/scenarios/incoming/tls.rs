//! A target whose application speaks TLS.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::{fs, io::BufRead as _, io::BufReader};

use anyhow::{Context as _, Result, ensure};
use e2e::fixture::Program;
use e2e::machine::{Target, network};
use e2e::{Scenario, until};
use tempfile::TempDir;

use super::super::support::{SessionProcess, programs};
use super::MINE;

const PORT: u16 = 8443;
/// The server name in the certificate, which clients request.
const NAME: &str = "checkout.shop.test";

/// A certificate and its key, in a folder.
fn certificate() -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let certified = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    fs::write(folder.path().join("tls.crt"), certified.cert.pem())?;
    let key = certified.signing_key.serialize_pem();
    fs::write(folder.path().join("tls.key"), key)?;
    Ok(folder)
}

fn server(name: &str, certificate: &Path) -> Result<Program> {
    let folder = certificate.to_str().context("the path is not UTF-8")?;
    let server = Program::script("node", "servers/node/secure.mjs");
    Ok(server
        .argument(name.to_owned())
        .argument(folder.to_owned())
        .argument(PORT.to_string()))
}

/// The original application, in the target's network namespace. It is killed when this value is dropped.
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

/// Sends a request that trusts only this certificate, and returns the response.
fn request(target: &Target, trusted: &Path, arguments: &[&str]) -> Result<String> {
    let mut curl = target.in_peer_network("curl");
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

pub(super) async fn requests_inside_tls_are_filtered(_: &Scenario<'_>) -> Result<()> {
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
    let settings = settings.to_str().context("the path is not UTF-8")?;
    let server = server("local", ours.path())?;
    let command = programs()?.exec(&target, &server.command);
    let session = SessionProcess::start(command, &[("CONFIG_FILE", settings)])?;
    let first = until("a response of the program", async || {
        let response = request(&target, theirs.path(), &["-H", MINE])?;
        Ok(response.starts_with("local ").then_some(()))
    });
    first.await.with_context(|| session.report())?;

    // The client sees the target's certificate and negotiates the application's protocol, whichever of both responds.
    for (option, version) in [("--http1.1", "1.1"), ("--http2", "2.0")] {
        let response = request(&target, theirs.path(), &[option, "-H", MINE])?;
        let expected = format!("local {version} {NAME} {}\n", network::CLIENT);
        ensure!(response == expected, "{option}: {response:?}");
        // The application receives TLS, too, with the server name that the client requested.
        let response = request(&target, theirs.path(), &[option])?;
        let expected = format!("original {version} {NAME} {}\n", network::TARGET);
        ensure!(response == expected, "{option}: {response:?}");
    }
    ensure!(request(&target, ours.path(), &[]).is_err());

    // After the session the client reaches the application directly again.
    session.kill()?;
    until("a direct response of the application", async || {
        let response = request(&target, theirs.path(), &["-H", MINE])?;
        let expected = format!("original 2.0 {NAME} {}\n", network::CLIENT);
        Ok((response == expected).then_some(()))
    })
    .await
}

/// A program that does not use TLS receives the decrypted requests.
pub(super) async fn a_program_without_tls_receives_plaintext(_: &Scenario<'_>) -> Result<()> {
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
    let settings = settings.to_str().context("the path is not UTF-8")?;
    let session = super::serve(&target, PORT, &[("CONFIG_FILE", settings)])?;
    let responded = until("a response of the program", async || {
        let response = request(&target, theirs.path(), &["--http1.1"])?;
        Ok((response == super::LOCAL).then_some(()))
    });
    responded.await.with_context(|| session.report())
}
