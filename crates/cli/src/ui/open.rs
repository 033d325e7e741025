//! Opens a browser.
//!
//! The address contains a secret, and every user of a machine can read the arguments of programs. So the browser opens a
//! file that redirects to the address, in a folder that only the user can access.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tokio::signal::unix::{SignalKind, signal};

use crate::api::folder::Folder;

/// The file that redirects to the address. It is removed when this is dropped.
#[derive(Debug)]
pub(super) struct RedirectPage(Option<PathBuf>);

pub(super) fn browser(folder: &Folder, port: u16, url: &str) -> RedirectPage {
    let file = folder.path().join(format!("open-{port}.html"));
    match open(&file, url) {
        Ok(()) => RedirectPage(Some(file)),
        Err(error) => {
            eprintln!("standin: no browser could be opened ({error}): open the address yourself");
            RedirectPage(Some(file))
        }
    }
}

/// Waits for SIGTERM or Ctrl-C.
pub(super) async fn termination() {
    let Ok(mut terminated) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminated.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

fn open(file: &PathBuf, url: &str) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let page = format!(
        "<!doctype html><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"0;url={url}\"><title>Standin</title>\n"
    );
    options.open(file)?.write_all(page.as_bytes())?;
    let mut child = Command::new("xdg-open")
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    std::thread::spawn(move || child.wait());
    Ok(())
}

impl Drop for RedirectPage {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            let _ = std::fs::remove_file(file);
        }
    }
}
