//! Ports on which the program no longer listens.

use std::process::Stdio;

use anyhow::{Result, ensure};
use e2e::Scenario;
use e2e::machine::{Target, network};

use super::super::support::{SessionProcess, programs};

/// Closes its listener, and connects to the port. The last connection is made by another client, after the program has
/// been refused.
const PROGRAM: &str = r#"
import socket, sys
for _ in range(10):
    socket.create_server(("", 9090)).close()
    for host in sys.argv[1:]:
        try:
            socket.create_connection((host, 9090), 10)
        except ConnectionRefusedError:
            continue
        sys.exit(f"{host} accepted the connection")
print("refused", flush=True)
sys.stdin.read()
"#;

pub(super) async fn a_port_that_the_program_has_closed_refuses_connections(
    _: &Scenario<'_>,
) -> Result<()> {
    let target = Target::start()?;
    let own = network::TARGET.to_string();
    let mut command = programs()?.exec(&target, &["python3", "-c", PROGRAM, "127.0.0.1", &own]);
    command.stdin(Stdio::piped());
    let session = SessionProcess::start(command, &[("INCOMING", "steal")])?;
    e2e::until("the program is refused", async || {
        let has_failed = session.stderr()?.contains("accepted the connection");
        ensure!(!has_failed, "{}", session.report());
        Ok((session.stdout()? == "refused\n").then_some(()))
    })
    .await?;
    let client = target
        .in_peer_network("curl")
        .args(["--silent", "--show-error", "--max-time", "20"])
        .arg(format!("http://{own}:9090/"))
        .output()?;
    let error = String::from_utf8_lossy(&client.stderr);
    // curl's code for a connection that failed.
    ensure!(client.status.code() == Some(7), "{} {error}", client.status);
    Ok(())
}
