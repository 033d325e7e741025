//! Keeps a session's connection to the operator: made again whenever it is lost, through whichever replica answers.
//!
//! The links of a session are above it and outlive every connection. They dial when theirs is lost; until the operator is
//! there again a dial waits a moment and then says why it cannot be made.

use std::io;
use std::sync::Arc;
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
/// How long one attempt may take. The operator may have to start agents anew.
const ATTEMPT: Duration = Duration::from_secs(90);
/// How long a dial waits for the operator.
const DIAL: Duration = Duration::from_secs(3);
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
    /// Left when the connection is lost.
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

struct Keeper {
    session: OperatorSession,
    line: watch::Sender<Line>,
    places: watch::Sender<Places>,
}

impl Keeper {
    async fn keep(self, mut connection: Arc<OperatorConnection>) {
        loop {
            let why = self.follow(&connection).await;
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

    /// Passes on where agents are, until the connection ends.
    async fn follow(&self, connection: &OperatorConnection) -> String {
        let mut places = connection.places.clone();
        loop {
            tokio::select! {
                changed = places.changed() => match changed {
                    Ok(()) => {
                        let now = places.borrow_and_update().clone();
                        self.places.send_if_modified(|before| {
                            let is_new = *before != now;
                            *before = now;
                            is_new
                        });
                    }
                    Err(_) => return connection.ended().await,
                },
                why = connection.ended() => return why,
            }
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

impl Dial for CarriedDialer {
    type Pipe = Channel;

    async fn dial(&self) -> io::Result<Channel> {
        let mut line = self.line.clone();
        let found = line.wait_for(|line| !matches!(line, Line::Away(_)));
        let why = match timeout(DIAL, found).await {
            Ok(Ok(line)) => match &*line {
                Line::There(connection) => return Ok(connection.open(self.place)),
                Line::Over(why) | Line::Away(why) => why.clone(),
            },
            Ok(Err(_)) => "the session has ended".to_owned(),
            Err(_) => match &*self.line.borrow() {
                Line::Away(why) | Line::Over(why) => why.clone(),
                Line::There(connection) => return Ok(connection.open(self.place)),
            },
        };
        Err(io::Error::new(io::ErrorKind::NotConnected, why))
    }
}
