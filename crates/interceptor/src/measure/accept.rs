//! How long a server takes to accept an established connection, and to query its peer.

use std::any::Any;
use std::fmt;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;

use super::{Comparison, Samples, failed, intercept_all};
use crate::host::{Host, ListenerChoice};
use crate::incoming::{Listener, PendingListener};
use crate::launch::start;
use crate::notification::errno_of;
use crate::outgoing::Transport;
use crate::supervisor::Supervisor;
use crate::sys::socket;
use crate::sys::spawn::{self, ProcessBody};
use crate::{Errno, Error};

const CASES: [&str; 3] = ["accept", "accept, blocking", "getpeername"];
/// How often each case is measured per round.
const TIMES: usize = 300;
const ROUNDS: usize = 5;

/// The overhead of supervision per incoming connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Accept {
    /// `accept` with a buffer for an address, on a nonblocking socket.
    pub accept: Comparison,
    /// The same on a blocking socket.
    pub waiting: Comparison,
    pub peer_name: Comparison,
}

impl fmt::Display for Accept {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [self.accept, self.waiting, self.peer_name];
        for (name, row) in CASES.iter().zip(rows) {
            writeln!(formatter, "{name}: {row}")?;
        }
        Ok(())
    }
}

/// Measures connections that the host delivers, compared with connections of this machine. Each sample is the median of
/// a round.
///
/// # Errors
/// When this machine does not allow supervision.
pub fn accept() -> Result<Accept, Error> {
    let (mut bare, mut supervised) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(run(None)?);
        supervised.push(run(Some(&Arc::default()))?);
    }
    let case = |index: usize| {
        let samples = |rounds: &[Vec<Duration>]| {
            let of_case = rounds.iter().filter_map(|round| round.get(index));
            Samples::of(of_case.copied().collect())
        };
        Comparison {
            bare: samples(&bare),
            supervised: samples(&supervised),
        }
    };
    Ok(Accept {
        accept: case(0),
        waiting: case(1),
        peer_name: case(2),
    })
}

/// A host that accepts every listener, and keeps the last one.
#[derive(Debug, Default)]
struct CapturingHost(Mutex<Option<Listener>>);

impl Host for CapturingHost {
    fn choose_listener(&self, _: Transport, _: SocketAddr) -> ListenerChoice {
        ListenerChoice::Target
    }

    fn listen(&self, listening: PendingListener) {
        let mut last = self.0.lock();
        *last = Some(listening.accept());
    }
}

/// The medians of all cases.
fn run(host: Option<&Arc<CapturingHost>>) -> Result<Vec<Duration>, Error> {
    let failing = |what| move |error: std::io::Error| failed(what)(errno_of(&error));
    let (ours, theirs) = UnixStream::pair().map_err(failing("make a pair of sockets"))?;
    let running = match host {
        Some(host) => {
            let host = Arc::clone(host) as Arc<dyn Host>;
            let supervisor = Supervisor::new(host, intercept_all());
            Some(start(
                &ProcessBody::Run(measured, theirs.into()),
                supervisor,
            )?)
        }
        None => {
            // It returns when the process exits; until then we communicate with it.
            std::thread::spawn(move || spawn::run_bare(measured, theirs.as_fd()));
            None
        }
    };
    let number = || {
        let mut bytes = [0; 8];
        (&ours)
            .read_exact(&mut bytes)
            .map_err(failing("read the measurements"))?;
        Ok::<u64, Error>(u64::from_ne_bytes(bytes))
    };
    let measure_mode = || {
        let port = u16::try_from(number()?).unwrap_or_default();
        for _ in 0..TIMES {
            let connection = connect(host.map(|host| &**host), port).map_err(failed("connect"))?;
            (&ours)
                .write_all(&[0; 8])
                .map_err(failing("announce a connection"))?;
            number()?;
            drop(connection);
        }
        Ok::<_, Error>((number()?, number()?))
    };
    let (accept, peer_name) = measure_mode()?;
    let (waiting, _) = measure_mode()?;
    drop(running);
    let medians = [accept, waiting, peer_name].map(Duration::from_nanos);
    Ok(medians.to_vec())
}

/// Connects to the server, through the host if there is one. The connection is established when this returns.
fn connect(host: Option<&CapturingHost>, port: u16) -> Result<Box<dyn Any>, Errno> {
    let Some(host) = host else {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        return stream
            .map(|stream| Box::new(stream) as Box<dyn Any>)
            .map_err(|error| errno_of(&error));
    };
    let client = SocketAddr::from((Ipv4Addr::new(203, 0, 113, 9), 4711));
    let listener = host.0.lock().clone().ok_or(Errno::EINVAL)?;
    let connection = listener.connect(client, client)?;
    let mut waiting = [PollFd::new(connection.socket.as_fd(), PollFlags::POLLOUT)];
    poll(&mut waiting, PollTimeout::NONE)?;
    Ok(Box::new(connection))
}

/// The body of the measured process. It only makes system calls; see [`ProcessBody::Run`].
fn measured(result: BorrowedFd<'_>) {
    for flags in [libc::SOCK_NONBLOCK, 0] {
        if serve(result, flags).is_err() {
            return;
        }
    }
}

fn serve(result: BorrowedFd<'_>, flags: i32) -> Result<(), Errno> {
    let send = |number: u64| nix::unistd::write(result, &number.to_ne_bytes()).map(drop);
    let listener = socket::create(libc::AF_INET, libc::SOCK_STREAM | flags, 0)?;
    let port = socket::listen_on_any_port(listener.as_fd())?;
    send(u64::from(port))?;
    let (mut accepting, mut naming) = ([0_u64; TIMES], [0_u64; TIMES]);
    for (accepted, named) in accepting.iter_mut().zip(&mut naming) {
        nix::unistd::read(result, &mut [0; 8])?;
        let before = Instant::now();
        let connection = socket::accept_any(listener.as_fd())?;
        *accepted = nanoseconds(before);
        let before = Instant::now();
        socket::call_getpeername(connection.as_fd())?;
        *named = nanoseconds(before);
        drop(connection);
        send(0)?;
    }
    for durations in [&mut accepting, &mut naming] {
        durations.sort_unstable();
        send(durations.get(TIMES / 2).copied().unwrap_or_default())?;
    }
    Ok(())
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
