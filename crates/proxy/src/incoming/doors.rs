//! The application's listeners of one port.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use interceptor::Transport;
use tokio::time::sleep;

use super::door::{Delivered, Door};
use crate::stream::LocalStream;

/// An application whose `listen` has just been let through has not done it yet.
const TRIES: u32 = 40;
const BETWEEN_TRIES: Duration = Duration::from_millis(5);

/// Several processes may listen on one port, and on one for each family of addresses.
#[derive(Debug, Default)]
pub(super) struct Doors {
    doors: Mutex<Vec<(SocketAddr, Arc<dyn Door>)>>,
    turn: AtomicUsize,
}

impl Doors {
    pub(super) fn add(&self, address: SocketAddr, door: Arc<dyn Door>) {
        self.lock().push((address, door));
    }

    /// Forgets those that are closed. Says whether there are any left.
    pub(super) fn look(&self) -> bool {
        let mut doors = self.lock();
        doors.retain(|(_, door)| door.is_there());
        !doors.is_empty()
    }

    /// Connects to a listener of the application, to each in its turn.
    pub(super) async fn connect(
        &self,
        client: SocketAddr,
        server: SocketAddr,
    ) -> Option<LocalStream> {
        for _ in 0..TRIES {
            let mut is_there = false;
            for door in self.in_turn(client) {
                match connect(&*door, client, server).await {
                    Ok(stream) => return Some(stream),
                    Err(error) => tracing::debug!(%error, "a listener does not take a connection"),
                }
                is_there |= door.is_there();
            }
            if !is_there {
                return None;
            }
            sleep(BETWEEN_TRIES).await;
        }
        None
    }

    /// A socket that exchanges datagrams with the application.
    pub(super) fn open(&self, client: SocketAddr, server: SocketAddr) -> Option<Delivered> {
        let mut doors = self.in_turn(client).into_iter();
        doors.find_map(|door| door.deliver(client, server).ok())
    }

    /// Those that know addresses of this kind come first.
    fn in_turn(&self, client: SocketAddr) -> Vec<Arc<dyn Door>> {
        let doors = self.lock();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let start = turn.checked_rem(doors.len()).unwrap_or(0);
        let (after, before) = doors.split_at(start);
        let mut ordered: Vec<&(SocketAddr, Arc<dyn Door>)> = before.iter().chain(after).collect();
        ordered
            .sort_by_key(|(address, _)| address.is_ipv4() != client.ip().to_canonical().is_ipv4());
        ordered
            .into_iter()
            .map(|(_, door)| Arc::clone(door))
            .collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(SocketAddr, Arc<dyn Door>)>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that is there.
async fn connect(
    door: &dyn Door,
    client: SocketAddr,
    server: SocketAddr,
) -> io::Result<LocalStream> {
    let Delivered { socket, kept } = door.deliver(client, server)?;
    let stream = LocalStream::new(Transport::Tcp, socket, kept)?;
    stream.connected().await?;
    Ok(stream)
}
