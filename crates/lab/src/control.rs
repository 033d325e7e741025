//! Requests to the lab's own processes: one JSON line there, one JSON line back, over a Unix socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Doing as _, Error, Result};

/// The longest that an answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The answer on the socket. An error travels as its text: the caller cannot do more with it than show it.
#[derive(Debug, Serialize, Deserialize)]
enum Answer<T> {
    Ok(T),
    Failed(String),
}

/// Sends one request to the process that listens on `socket` and waits for its answer.
pub(crate) fn call<Request, Response>(
    role: &'static str,
    socket: &Path,
    request: &Request,
) -> Result<Response>
where
    Request: Serialize,
    Response: DeserializeOwned,
{
    let talking = || format!("talk to the lab's {role} at {}", socket.display());
    let mut stream = UnixStream::connect(socket).doing(talking)?;
    stream.set_read_timeout(Some(PATIENCE)).doing(talking)?;
    let mut line = serde_json::to_string(request).map_err(|source| Error::Json {
        what: format!("a request to the lab's {role}"),
        source,
    })?;
    line.push('\n');
    stream.write_all(line.as_bytes()).doing(talking)?;
    let mut answer = String::new();
    if let Err(error) = BufReader::new(stream).read_line(&mut answer) {
        if error.kind() == io::ErrorKind::WouldBlock {
            let seconds = PATIENCE.as_secs();
            let message = format!(
                "nothing within {seconds} s; `cargo xtask lab status` shows whether the node is paused"
            );
            return Err(Error::Remote { role, message });
        }
        return Err(error).doing(talking);
    }
    if answer.is_empty() {
        return Err(Error::Remote {
            role,
            message: "nothing; it ended while it worked".to_owned(),
        });
    }
    match serde_json::from_str(&answer).map_err(|source| Error::Json {
        what: format!("the answer of the lab's {role}"),
        source,
    })? {
        Answer::Ok(response) => Ok(response),
        Answer::Failed(message) => Err(Error::Remote { role, message }),
    }
}

/// Answers requests in threads of their own until the process ends.
pub(crate) fn serve<Request, Response>(
    listener: UnixListener,
    answer: impl Fn(Request) -> Result<Response> + Send + Clone + 'static,
) where
    Request: DeserializeOwned,
    Response: Serialize,
{
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            thread::spawn(move || {
                // A caller that goes away in the middle needs no answer.
                let _ = answer_one(&stream, answer);
            });
        }
    });
}

fn answer_one<Request, Response>(
    mut stream: &UnixStream,
    answer: impl Fn(Request) -> Result<Response>,
) -> std::io::Result<()>
where
    Request: DeserializeOwned,
    Response: Serialize,
{
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let reply = match serde_json::from_str(&line) {
        Ok(request) => match answer(request) {
            Ok(response) => Answer::Ok(response),
            Err(error) => Answer::Failed(chain(&error)),
        },
        Err(error) => Answer::Failed(format!("that is not a request: {error}")),
    };
    let mut text = serde_json::to_string(&reply)?;
    text.push('\n');
    stream.write_all(text.as_bytes())
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_errors_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("control.sock");
        serve(UnixListener::bind(&socket).unwrap(), |number: u32| {
            if number == 0 {
                Err(Error::Refused("zero is not accepted".to_owned()))
            } else {
                Ok(number * 2)
            }
        });
        assert_eq!(call::<_, u32>("test", &socket, &21).unwrap(), 42);
        let error = call::<_, u32>("test", &socket, &0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the lab's test answered: zero is not accepted"
        );
        let error = call::<_, u32>("test", &socket, &"word").unwrap_err();
        assert!(error.to_string().contains("not a request"), "{error}");
    }

    #[test]
    fn nobody_listening_is_an_error_that_names_the_socket() {
        let error = call::<_, u32>("test", Path::new("/nonexistent/x.sock"), &1).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/x.sock"), "{error}");
    }
}
