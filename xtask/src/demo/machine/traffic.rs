//! The part people come for: requests to the service, answered by a program on this machine.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use nix::unistd::geteuid;

use super::{Programs, Service};
use crate::demo::session::Session;
use crate::process;

const HEADER: &str = "x-developer: you";
const ADDRESS: &str = "http://10.77.0.1:8000/order";
const DEPLOYED: &str = "order taken by the deployed version";
const NEW: &str = "order taken by the new version";

pub(super) fn show(programs: &Programs, service: &Service) -> Result<()> {
    let filter = format!("^{HEADER}$");
    println!(
        "
Now the other direction. The service takes orders, and everybody uses it. You have a new version of it, `checkout`, and
want it to answer your own requests, which have a header of yours, and nobody else's:

$ standin exec -t process/{} --steal --header-filter '{filter}' -- checkout",
        service.pid
    );
    let mut session = Command::new(&programs.standin);
    session
        .args(["exec", "-t", &format!("process/{}", service.pid)])
        .args(["--steal", "--header-filter", &filter, "--"])
        .arg(&programs.checkout)
        .stdin(Stdio::null());
    let session = Session::start(session)?;
    let everybody = ask(programs, service, None)?;
    let you = ask(programs, service, Some(HEADER))?;
    session.end()?;
    println!("\nThe session has ended, and all is as before:");
    let afterwards = ask(programs, service, Some(HEADER))?;
    judge(&everybody, &you, &afterwards)
}

/// A demo that shows nothing must not look like one that went well.
fn judge(everybody: &str, you: &str, afterwards: &str) -> Result<()> {
    for (answer, expected) in [(everybody, DEPLOYED), (you, NEW), (afterwards, DEPLOYED)] {
        if !answer.contains(expected) {
            bail!(
                "the answer {answer:?} should be {expected:?}. `standin diagnose` says what is missing here"
            );
        }
    }
    Ok(())
}

/// One request, from the service's own network.
fn ask(programs: &Programs, service: &Service, header: Option<&str>) -> Result<String> {
    match header {
        Some(header) => println!("\n$ ask {ADDRESS} '{header}'"),
        None => println!("\n$ ask {ADDRESS}"),
    }
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--target={}", service.pid))
        .arg("--net");
    if !geteuid().is_root() {
        command.args(["--user", "--preserve-credentials"]);
    }
    let answer = process::output(command.arg(&programs.ask).arg(ADDRESS).args(header))?;
    print!("{answer}");
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_must_come_from_whom_they_should() {
        assert!(judge(DEPLOYED, NEW, DEPLOYED).is_ok());
        assert!(judge(DEPLOYED, DEPLOYED, DEPLOYED).is_err());
        assert!(judge(NEW, NEW, DEPLOYED).is_err());
        assert!(judge(DEPLOYED, NEW, NEW).is_err());
    }
}
