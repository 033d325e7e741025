//! Local operations, which a session must not slow down.

use std::fs::{self, File};
use std::io::{IoSlice, Read as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use anyhow::{Context as _, Result, ensure};
use nix::sys::socket::{MsgFlags, sendmsg};

use super::{Numbers, time_each};

const MESSAGE: usize = 1024;

#[expect(
    clippy::disallowed_methods,
    reason = "the worker does one thing at a time, and a relative path is what is measured"
)]
pub(super) fn open(folder: &Path, count: usize) -> Result<Numbers> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("file"), "content")?;
    let link = folder.join("link");
    if !link.is_symlink() {
        symlink("file", &link)?;
    }
    let before = env::current_dir()?;
    env::set_current_dir(folder)?;
    let measure = |path: &Path| {
        let open = |_| {
            File::open(path)?;
            Ok(())
        };
        time_each(count, open)?;
        time_each(count, open)
    };
    let numbers = Numbers::from([
        ("absolute", measure(&folder.join("file"))?),
        ("relative", measure(Path::new("file"))?),
        ("link", measure(&link)?),
    ]);
    env::set_current_dir(before)?;
    Ok(numbers)
}

pub(super) fn messages(time: Duration) -> Result<Numbers> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let sender = TcpStream::connect(listener.local_addr()?)?;
    let (mut receiver, _) = listener.accept()?;
    sender.set_nodelay(true)?;
    let reading = thread::spawn(move || -> std::io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        while receiver.read(&mut buffer)? > 0 {}
        Ok(())
    });
    let message = [7; MESSAGE];
    let mut count = 0_u64;
    let start = Instant::now();
    while start.elapsed() < time {
        let slices = [IoSlice::new(&message)];
        let sent = sendmsg::<()>(sender.as_raw_fd(), &slices, &[], MsgFlags::empty(), None)?;
        ensure!(sent == MESSAGE, "only a part of a message was sent");
        count += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    drop(sender);
    reading.join().ok().context("the reader panicked")??;
    Ok(Numbers::from([(
        "per_second",
        vec![count as f64 / seconds],
    )]))
}

pub(super) fn start(program: &Path, arguments: &[String], count: usize) -> Result<Numbers> {
    let seconds = time_each(count, |_| {
        let status = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .with_context(|| format!("starting {}", program.display()))?;
        ensure!(
            status.success(),
            "{} ended with {status}",
            program.display()
        );
        Ok(())
    })?;
    Ok(Numbers::from([("seconds", seconds)]))
}
