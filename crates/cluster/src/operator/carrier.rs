//! Keeps a session's connection to the operator: made again whenever it is lost, through whichever replica answers.
//!
//! The links of a session are above it and outlive every connection. They dial when theirs is lost; until the operator is
//! there again a dial waits a moment and then says why it cannot be made. A replica that is about to end says so: there is
//! then another connection before the links leave the old one, and no agent misses its client.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use api::connect::{Places, SESSION_IS_OVER};
use api::session::SessionId;
use link::Dial;
use link::channels::Channel;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::connection::{OperatorConnection, OperatorSession};
use crate::error::{Error, Result, chain};

/// A replica that ends, or an operator that is just being replaced, is tried again for so long before a session is refused.
const FIRST_PATIENCE: Duration = Duration::from_secs(3);
/// The pauses between attempts to come back.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// A replica that ends carries its sessions for some seconds more; another one is to be found within them.
const LONGEST_PAUSE_OF_A_MOVE: Duration = Duration::from_secs(1);
/// How long one attempt may take. The operator may have to start agents anew.
const ATTEMPT: Duration = Duration::from_secs(90);
/// How long a dial waits for the operator.
const DIAL: Duration = Duration::from_secs(3);
/// How long links may take to leave a connection for the next.
const MOVED_WITHIN: Duration = Duration::from_secs(10);
/// How long to wait until the operator has heard of the end.
const FAREWELL: Duration = Duration::from_secs(2);

/// A session's connection to the operator, whichever there is now. It ends when this is dropped.
#[derive(Debug)]
pub struct Carrier {
    id: SessionId,
    line: watch::Receiver<Line>,
    /// Where agents are, as the operator said last. From the keeper to whoever uses them.
    places: watch::Receiver<Places>,
    keeper: AbortHandle,
}

/// The connection, from the keeper to those who dial.
#[derive(Debug, Clone)]
enum Line {
    /// Left when the connection is lost, or another one is there in its place.
    There(Arc<OperatorConnection>),
    /// Left when there is another one, or none is to be. Why there is none now.
    Away(String),
    /// The session was ended, or is refused. Never left.
    Over(String),
}

/// Dials the agent of one place, through whichever connection there is.
#[derive(Debug, Clone)]
pub struct CarriedDialer {
    line: watch::Receiver<Line>,
    place: u32,
    used: Arc<Mutex<Used>>,
}

/// What was dialled through last.
#[derive(Debug, Default)]
struct Used {
    connection: Weak<OperatorConnection>,
    /// Over that connection, as [`Places::moves`] says.
    moves: u32,
}

impl Carrier {
    /// Connects for the first time. Must be called on a runtime.
    pub async fn start(session: OperatorSession) -> Result<Self> {
        let connection = Arc::new(first(&session).await?);
        let (tell_line, line) = watch::channel(Line::There(Arc::clone(&connection)));
        let (tell_places, places) = watch::channel(connection.places.borrow().clone());
        let id = session.id();
        let keeper = Keeper {
            session,
            line: tell_line,
            places: tell_places,
        };
        Ok(Self {
            id,
            line,
            places,
            keeper: tokio::spawn(keeper.keep(connection)).abort_handle(),
        })
    }

    /// The number by which others know the session.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Where agents are. They stay known while there is no connection.
    pub fn places(&self) -> watch::Receiver<Places> {
        self.places.clone()
    }

    pub fn dialer(&self, place: u32) -> CarriedDialer {
        CarriedDialer {
            line: self.line.clone(),
            place,
            used: Arc::default(),
        }
    }

    /// Ends when the session is over for good, with the reason: it was ended, or may not go on.
    pub async fn over(&self) -> String {
        let mut line = self.line.clone();
        loop {
            if let Line::Over(why) = &*line.borrow_and_update() {
                return why.clone();
            }
            if line.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Tells the operator that the session is done, so that nobody waits for us. Where there is no connection now, the
    /// operator ends the session when its client has been away for too long.
    pub async fn end(&self) {
        let connection = match &*self.line.borrow() {
            Line::There(connection) => Arc::clone(connection),
            Line::Away(_) | Line::Over(_) => return,
        };
        connection.say_farewell();
        if timeout(FAREWELL, connection.ended()).await.is_err() {
            tracing::debug!("the operator did not answer to the end of the session");
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

async fn first(session: &OperatorSession) -> Result<OperatorConnection> {
    let began = Instant::now();
    loop {
        match session.connect().await {
            Err(error @ (Error::OperatorDown { .. } | Error::OperatorBusy(_)))
                if began.elapsed() < FIRST_PATIENCE =>
            {
                tracing::info!(error = chain(&error), "the operator is asked again");
                sleep(SHORTEST_PAUSE * 3).await;
            }
            result => return result,
        }
    }
}

/// Why a connection is of no more use.
enum Left {
    /// It has ended, for this reason.
    Ended(String),
    /// The replica will end it soon.
    Leaving,
}

struct Keeper {
    session: OperatorSession,
    line: watch::Sender<Line>,
    places: watch::Sender<Places>,
}

impl Keeper {
    async fn keep(self, mut connection: Arc<OperatorConnection>) {
        loop {
            let why = match self.follow(&connection).await {
                Left::Ended(why) => why,
                Left::Leaving => match self.find_another(&connection).await {
                    Ok(next) => {
                        tracing::info!("another replica of the operator carries the session");
                        self.say(Line::There(Arc::clone(&next)));
                        let left = std::mem::replace(&mut connection, next);
                        tokio::spawn(timeout(MOVED_WITHIN, async move { left.unused().await }));
                        continue;
                    }
                    Err(why) => why,
                },
            };
            tracing::info!(why, "the connection to the operator has ended");
            if why == SESSION_IS_OVER {
                self.say(Line::Over("it was ended in the cluster".to_owned()));
                return;
            }
            let why = if why.is_empty() { "it was cut" } else { &why };
            self.say(Line::Away(format!("the connection to the operator: {why}")));
            connection = match self.come_back().await {
                Ok(connection) => Arc::new(connection),
                Err(error) => return self.say(Line::Over(chain(&error))),
            };
            tracing::info!("connected to the operator again");
            self.say(Line::There(Arc::clone(&connection)));
        }
    }

    /// Passes on where agents are, until the connection ends or is to be left.
    async fn follow(&self, connection: &OperatorConnection) -> Left {
        let mut places = connection.places.clone();
        loop {
            tokio::select! {
                changed = places.changed() => match changed {
                    Ok(()) => {
                        let now = places.borrow_and_update().clone();
                        if now.leaving {
                            return Left::Leaving;
                        }
                        self.places.send_if_modified(|before| {
                            let is_new = *before != now;
                            *before = now;
                            is_new
                        });
                    }
                    Err(_) => return Left::Ended(connection.ended().await),
                },
                why = connection.ended() => return Left::Ended(why),
            }
        }
    }

    /// Connects to another replica while this connection is still used. If it ends before that, the reason.
    async fn find_another(
        &self,
        connection: &OperatorConnection,
    ) -> std::result::Result<Arc<OperatorConnection>, String> {
        let another = async {
            let mut pause = SHORTEST_PAUSE;
            loop {
                match self.session.connect().await {
                    Ok(another) => return Arc::new(another),
                    Err(error) => {
                        tracing::debug!(error = chain(&error), "no other replica is there yet");
                    }
                }
                sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
                pause = (pause * 2).min(LONGEST_PAUSE_OF_A_MOVE);
            }
        };
        tokio::select! {
            another = another => Ok(another),
            why = connection.ended() => Err(why),
        }
    }

    /// Tries until it works, or never will.
    async fn come_back(&self) -> Result<OperatorConnection> {
        let mut pause = SHORTEST_PAUSE;
        loop {
            let error = match timeout(ATTEMPT, self.session.connect()).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => error,
                Err(_) => Error::OperatorBusy("it does not answer".to_owned()),
            };
            if is_final(&error) {
                return Err(error);
            }
            tracing::debug!(error = chain(&error), "the operator is not there yet");
            self.say(Line::Away(chain(&error)));
            // Clients that lost the same replica must not all come back at the same moment.
            sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn say(&self, line: Line) {
        self.line.send_replace(line);
    }
}

/// A login that has expired may be renewed, and an API server that is being restarted says all sorts of things.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::SessionOver(_)
            | Error::OperatorRefused(_)
            | Error::MayNot { .. }
            | Error::ForeignOperator
    )
}

impl CarriedDialer {
    fn open(&self, connection: &Arc<OperatorConnection>) -> Channel {
        *self.used() = Used {
            connection: Arc::downgrade(connection),
            moves: connection.places.borrow().moves(self.place).unwrap_or(0),
        };
        connection.open(self.place)
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_used(&self, connection: &Arc<OperatorConnection>) -> bool {
        std::ptr::eq(self.used().connection.as_ptr(), Arc::as_ptr(connection))
    }

    /// Waits until the Primary reaches the place in another way, over the same connection.
    async fn moved_behind(&self, mut places: watch::Receiver<Places>) {
        let is_another = |places: &Places| {
            let now = places.moves(self.place);
            now.is_some_and(|now| now != self.used().moves)
        };
        if places.wait_for(is_another).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Dial for CarriedDialer {
    type Pipe = Channel;

    async fn moved(&self) {
        let mut line = self.line.clone();
        loop {
            // Nothing of the connection is kept but what it says: it ends when its users have left it.
            let places = match &*line.borrow_and_update() {
                Line::There(connection) if !self.has_used(connection) => return,
                Line::There(connection) => Some(connection.places.clone()),
                Line::Away(_) | Line::Over(_) => None,
            };
            let moved_behind = async {
                match places {
                    Some(places) => self.moved_behind(places).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = moved_behind => return,
                changed = line.changed() => if changed.is_err() {
                    std::future::pending::<()>().await;
                },
            }
        }
    }

    async fn dial(&self) -> io::Result<Channel> {
        let mut line = self.line.clone();
        let found = line.wait_for(|line| !matches!(line, Line::Away(_)));
        let why = match timeout(DIAL, found).await {
            Ok(Ok(line)) => match &*line {
                Line::There(connection) => return Ok(self.open(connection)),
                Line::Over(why) | Line::Away(why) => why.clone(),
            },
            Ok(Err(_)) => "the session has ended".to_owned(),
            Err(_) => match &*self.line.borrow() {
                Line::Away(why) | Line::Over(why) => why.clone(),
                Line::There(connection) => return Ok(self.open(connection)),
            },
        };
        Err(io::Error::new(io::ErrorKind::NotConnected, why))
    }
}

#[cfg(test)]
mod tests {
    use api::connect::{Place, PlaceCluster};
    use link::channels::{Channels, limits};
    use link::websocket::{Role, WebSocketStream};
    use tokio::io::duplex;

    use super::*;

    fn places(moves: u32) -> Places {
        Places {
            places: vec![Place {
                number: 7,
                cluster: Some("east".to_owned()),
                ..Place::default()
            }],
            clusters: vec![PlaceCluster {
                name: "east".to_owned(),
                moves,
                ..PlaceCluster::default()
            }],
            leaving: false,
        }
    }

    async fn is_moved(dialer: &CarriedDialer) -> bool {
        let moved = timeout(Duration::from_secs(1), dialer.moved()).await;
        moved.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_moves_with_its_connection_and_with_its_cluster() {
        let connect = async |said: Places| {
            let (ours, theirs) = duplex(64 * 1024);
            let ours = WebSocketStream::from_raw_socket(ours, Role::Client, Some(limits())).await;
            let theirs =
                WebSocketStream::from_raw_socket(theirs, Role::Server, Some(limits())).await;
            let (primary, events, driver) = Channels::over(theirs);
            tokio::spawn(driver);
            primary.say(serde_json::to_vec(&said).unwrap().into());
            let connection = Arc::new(OperatorConnection::over(ours));
            let mut heard = connection.places.clone();
            heard.wait_for(|places| *places == said).await.unwrap();
            (connection, primary, events)
        };
        let (connection, primary, _events) = connect(places(0)).await;
        let (tell, line) = watch::channel(Line::There(connection));
        let dialer = CarriedDialer {
            line,
            place: 7,
            used: Arc::default(),
        };
        let _pipe = dialer.dial().await.unwrap();
        assert!(!is_moved(&dialer).await);
        // A place that is gone has not moved.
        primary.say(serde_json::to_vec(&Places::default()).unwrap().into());
        assert!(!is_moved(&dialer).await);
        primary.say(serde_json::to_vec(&places(1)).unwrap().into());
        assert!(is_moved(&dialer).await);
        let _pipe = dialer.dial().await.unwrap();
        assert!(!is_moved(&dialer).await);
        // Another replica of the Primary has counted for itself.
        let (another, _primary, _events) = connect(places(1)).await;
        tell.send_replace(Line::There(another));
        assert!(is_moved(&dialer).await);
        let _pipe = dialer.dial().await.unwrap();
        assert!(!is_moved(&dialer).await);
        tell.send_replace(Line::Away("cut".to_owned()));
        assert!(!is_moved(&dialer).await);
    }
}
