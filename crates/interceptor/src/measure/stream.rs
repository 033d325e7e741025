//! The throughput of a local TCP stream of small messages.

use std::fmt;
use std::io::Read;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use super::{Comparison, PrefixHost, Samples, failed, intercept_all};
use crate::launch::start;
use crate::notification::errno_of;
use crate::supervisor::Supervisor;
use crate::sys::socket;
use crate::sys::spawn::{self, ProcessBody};
use crate::{Error, Host};

/// The size of a message; each is sent with `sendmsg`.
const MESSAGE: usize = 1024;
const MESSAGES: usize = 50_000;
const ROUNDS: usize = 5;

/// The port of the receiver. The measured process is a fork of this process, and so has it.
static PORT: AtomicU16 = AtomicU16::new(0);

/// The durations of a transfer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamLocal {
    pub transfer: Comparison,
    pub bytes: usize,
}

impl StreamLocal {
    /// The supervised throughput relative to the bare one, by medians.
    #[must_use]
    pub fn relative_throughput(&self) -> f64 {
        1.0 / self.transfer.ratio()
    }
}

impl fmt::Display for StreamLocal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.relative_throughput() * 100.0;
        write!(formatter, "{}, {percent:.0} % of bare", self.transfer)
    }
}

/// Measures with a host for which everything is local.
///
/// # Errors
/// When this machine does not allow supervision.
pub fn stream_local() -> Result<StreamLocal, Error> {
    stream_local_with(&(Arc::new(PrefixHost) as Arc<dyn Host>))
}

/// Like [`stream_local`], with a host for which 127.0.0.1 is local.
///
/// # Errors
/// Like [`stream_local`].
pub fn stream_local_with(host: &Arc<dyn Host>) -> Result<StreamLocal, Error> {
    let (mut bare, mut supervised) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(run(None)?);
        supervised.push(run(Some(host))?);
    }
    Ok(StreamLocal {
        transfer: Comparison {
            bare: Samples::of(bare),
            supervised: Samples::of(supervised),
        },
        bytes: MESSAGE * MESSAGES,
    })
}

fn run(host: Option<&Arc<dyn Host>>) -> Result<Duration, Error> {
    let failing = |what| move |error: std::io::Error| failed(what)(errno_of(&error));
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failing("listen"))?;
    let address = listener.local_addr().map_err(failing("listen"))?;
    PORT.store(address.port(), Ordering::SeqCst);
    let receiver = std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        let mut total = 0;
        if let Ok((mut stream, _)) = listener.accept() {
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                total += length;
            }
        }
        total
    });
    let (mut ours, theirs) = UnixStream::pair().map_err(failing("make a pair of sockets"))?;
    let running = match host {
        Some(host) => {
            let supervisor = Supervisor::new(Arc::clone(host), intercept_all());
            Some(start(
                &ProcessBody::Run(measured, theirs.into()),
                supervisor,
            )?)
        }
        None => {
            spawn::run_bare(measured, theirs.as_fd()).map_err(failed("start a process"))?;
            None
        }
    };
    let mut nanoseconds = [0; 8];
    ours.read_exact(&mut nanoseconds)
        .map_err(failing("read the measurements"))?;
    drop(running);
    match receiver.join() {
        Ok(total) if total == MESSAGE * MESSAGES => {}
        _ => return Err(failed("send everything")(crate::Errno::EIO)),
    }
    Ok(Duration::from_nanos(u64::from_ne_bytes(nanoseconds)))
}

/// The body of the measured process. It only makes system calls; see [`ProcessBody::Run`].
fn measured(result: BorrowedFd<'_>) {
    let mut address = [0_u8; 16];
    let family = u16::try_from(libc::AF_INET)
        .unwrap_or_default()
        .to_ne_bytes();
    let port = PORT.load(Ordering::SeqCst).to_be_bytes();
    for (slot, byte) in address
        .iter_mut()
        .zip(family.iter().chain(&port).chain(&[127, 0, 0, 1]))
    {
        *slot = *byte;
    }
    let Ok(stream) = socket::create(libc::AF_INET, libc::SOCK_STREAM, 0) else {
        return;
    };
    if socket::connect(stream.as_fd(), &address).is_err() {
        return;
    }
    let message = [b'x'; MESSAGE];
    let before = Instant::now();
    for _ in 0..MESSAGES {
        if socket::send_message(stream.as_fd(), &message) != Ok(MESSAGE) {
            return;
        }
    }
    let nanoseconds = u64::try_from(before.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let _ = nix::unistd::write(result.as_fd(), &nanoseconds.to_ne_bytes());
}
