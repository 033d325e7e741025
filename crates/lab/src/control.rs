//! Requests to the lab's own processes over Unix sockets: one JSON line as the request, one as the response.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use error_chain::error_chain;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorContext as _, Result};

/// Long enough for a response on a busy machine.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// The response on the socket. An error is sent as text, because the caller can only show it.
#[derive(Debug, Serialize, Deserialize)]
enum Reply<T> {
    Ok(T),
    Failed(String),
}

/// Sends one request to the process that listens on `socket` and waits for its response.
pub(crate) fn call<Request, Response>(
    role: &'static str,
    socket: &Path,
    request: &Request,
) -> Result<Response>
where
    Request: Serialize,
    Response: DeserializeOwned,
{
    let action = || format!("talk to the lab's {role} at {}", socket.display());
    let mut stream = UnixStream::connect(socket).with_context(action)?;
    stream
        .set_read_timeout(Some(RESPONSE_TIMEOUT))
        .with_context(action)?;
    let mut line = serde_json::to_string(request).map_err(|source| Error::Json {
        what: format!("a request to the lab's {role}"),
        source,
    })?;
    line.push('\n');
    stream.write_all(line.as_bytes()).with_context(action)?;
    let mut response = String::new();
    if let Err(error) = BufReader::new(stream).read_line(&mut response) {
        if error.kind() == io::ErrorKind::WouldBlock {
            let seconds = RESPONSE_TIMEOUT.as_secs();
            let message = format!(
                "no response within {seconds} s; `cargo xtask lab status` shows whether the node is paused"
            );
            return Err(Error::Remote { role, message });
        }
        return Err(error).with_context(action);
    }
    if response.is_empty() {
        return Err(Error::Remote {
            role,
            message: "no response; it exited while it handled the request".to_owned(),
        });
    }
    match serde_json::from_str(&response).map_err(|source| Error::Json {
        what: format!("the response of the lab's {role}"),
        source,
    })? {
        Reply::Ok(response) => Ok(response),
        Reply::Failed(message) => Err(Error::Remote { role, message }),
    }
}

/// Serves requests, each in its own thread, until the process exits.
pub(crate) fn serve<Request, Response>(
    listener: UnixListener,
    handler: impl Fn(Request) -> Result<Response> + Send + Clone + 'static,
) where
    Request: DeserializeOwned,
    Response: Serialize,
{
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let handler = handler.clone();
            thread::spawn(move || {
                // A client that has disconnected needs no response.
                let _ = handle_connection(&stream, handler);
            });
        }
    });
}

fn handle_connection<Request, Response>(
    mut stream: &UnixStream,
    handler: impl Fn(Request) -> Result<Response>,
) -> std::io::Result<()>
where
    Request: DeserializeOwned,
    Response: Serialize,
{
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let reply = match serde_json::from_str(&line) {
        Ok(request) => match handler(request) {
            Ok(response) => Reply::Ok(response),
            Err(error) => Reply::Failed(error_chain(&error)),
        },
        Err(error) => Reply::Failed(format!("not a request: {error}")),
    };
    let mut text = serde_json::to_string(&reply)?;
    text.push('\n');
    stream.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_and_errors_are_returned() {
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
            "request to the lab's test failed: zero is not accepted"
        );
        let error = call::<_, u32>("test", &socket, &"word").unwrap_err();
        assert!(error.to_string().contains("not a request"), "{error}");
    }

    #[test]
    fn a_missing_listener_is_an_error_that_names_the_socket() {
        let error = call::<_, u32>("test", Path::new("/nonexistent/x.sock"), &1).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/x.sock"), "{error}");
    }
}
