//! Flow-control windows, which follow the memory that is free and the streams that are stalled.

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

/// Windows of a new stream with stalled ones beside it: enough to begin.
const MIN_STREAM: u32 = 16 * 1024;
/// The connection's window grows to at most so many times its usual size.
const MAX_GROWTH: usize = 4;

/// Flow-control windows of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Windows {
    pub(super) stream: u32,
    pub(super) connection: u32,
}

impl Windows {
    /// For a fast stream from another zone.
    const MAX: Self = Self {
        stream: 256 * 1024,
        connection: 4 * 1024 * 1024,
    };
    /// The initial windows of the protocol.
    const MIN: u32 = 64 * 1024 - 1;

    /// New connections get smaller windows when little memory is free.
    pub(super) fn with_free_memory(free: usize) -> Self {
        let share = u32::try_from(free / 8).unwrap_or(u32::MAX);
        let connection = share.clamp(Self::MIN, Self::MAX.connection);
        Self {
            stream: connection.min(Self::MAX.stream),
            connection,
        }
    }

    /// The windows while streams hold bytes that are not read. The connection's window covers these, so that there is room for
    /// the other streams. Each stream gets less, so that many can be stalled.
    fn beside_stalled(self, stalled: usize) -> Self {
        let usual = self.connection as usize;
        let stream = match stalled {
            _ if stalled < usual / 2 => self.stream,
            _ if stalled < usual => self.stream / 4,
            _ => MIN_STREAM,
        };
        let covered = u32::try_from(stalled.min(MAX_GROWTH * usual)).unwrap_or(0);
        // In large steps, because each change is a frame.
        let step = self.connection / 8;
        Self {
            stream,
            connection: self.connection + covered / step * step,
        }
    }
}

/// A connection of the library.
pub(super) trait WindowedConnection {
    fn set_connection_window(&mut self, size: u32);
    /// Fails while the peer has not confirmed the change before.
    fn set_stream_window(&mut self, size: u32) -> Result<(), h2::Error>;
}

impl<T: AsyncRead + AsyncWrite + Unpin> WindowedConnection for h2::server::Connection<T, Bytes> {
    fn set_connection_window(&mut self, size: u32) {
        self.set_target_window_size(size);
    }

    fn set_stream_window(&mut self, size: u32) -> Result<(), h2::Error> {
        self.set_initial_window_size(size)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> WindowedConnection for h2::client::Connection<T, Bytes> {
    fn set_connection_window(&mut self, size: u32) {
        self.set_target_window_size(size);
    }

    fn set_stream_window(&mut self, size: u32) -> Result<(), h2::Error> {
        self.set_initial_window_size(size)
    }
}

/// The windows of an open connection.
pub(super) struct AdaptiveWindows {
    usual: Windows,
    current: Windows,
}

impl AdaptiveWindows {
    pub(super) fn new(usual: Windows) -> Self {
        Self {
            usual,
            current: usual,
        }
    }

    /// Adapts them to what streams hold now. Returns whether something has changed, so that the connection must be polled.
    pub(super) fn adapt(
        &mut self,
        stalled: usize,
        connection: &mut impl WindowedConnection,
    ) -> bool {
        let wanted = self.usual.beside_stalled(stalled);
        let before = self.current;
        if wanted.stream != before.stream && connection.set_stream_window(wanted.stream).is_ok() {
            self.current.stream = wanted.stream;
        }
        if wanted.connection != before.connection {
            connection.set_connection_window(wanted.connection);
            self.current.connection = wanted.connection;
        }
        self.current != before
    }
}

#[cfg(test)]
mod tests {
    use super::Windows;

    fn kibibytes(Windows { stream, connection }: Windows) -> (u32, u32) {
        (stream / 1024, connection / 1024)
    }

    #[test]
    fn windows_shrink_when_little_memory_is_free() {
        let windows = |free| kibibytes(Windows::with_free_memory(free));
        assert_eq!(windows(64 << 20), (256, 4096));
        assert_eq!(windows(8 << 20), (256, 1024));
        assert_eq!(windows(1 << 20), (128, 128));
        assert_eq!(windows(0), (63, 63));
    }

    #[test]
    fn stalled_streams_leave_room_for_others() {
        let windows = |stalled| kibibytes(Windows::MAX.beside_stalled(stalled));
        assert_eq!(windows(0), (256, 4096));
        assert_eq!(windows(256 << 10), (256, 4096));
        assert_eq!(windows(1 << 20), (256, 5 << 10));
        assert_eq!(windows(2 << 20), (64, 6 << 10));
        assert_eq!(windows(4 << 20), (16, 8 << 10));
        assert_eq!(windows(100 << 20), (16, 20 << 10));
    }
}
