//! Connections: only so many, and none keeps its place without asking for something.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};

/// How long a client may take at most for the head of a request, from the moment that it could send it.
const MOST_FOR_HEAD: Duration = Duration::from_secs(10);

/// Behind an accept that failed: of descriptors, say, others may come free.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves connections, at most so many at once: others wait to be accepted. The head of a request must come within `timeout`, if that is
/// shorter than it may take anyhow; a client that reads nothing for `timeout` loses its connection. Told to stop, it takes none, and returns when the requests
/// under way have ended.
pub(crate) async fn serve_all(
    listener: TcpListener,
    router: Router,
    most: usize,
    timeout: Duration,
    mut stopped: watch::Receiver<bool>,
) {
    let for_head = timeout.min(MOST_FOR_HEAD);
    let places = Arc::new(Semaphore::new(most));
    // Each connection has an end of it: without any more of them, all have ended.
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            _ = stopped.wait_for(|stops| *stops) => break,
            next = next => next,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let (router, stopped, open) = (router.clone(), stopped.clone(), open.clone());
        tokio::spawn(async move {
            serve_one(stream, router, [for_head, timeout], stopped).await;
            drop((place, open));
        });
    }
    drop((listener, open));
    let _ = all_closed.recv().await;
}

async fn serve_one(
    stream: TcpStream,
    router: Router,
    [for_head, unread]: [Duration; 2],
    mut stopped: watch::Receiver<bool>,
) {
    // Tokens are small and shall come at once.
    let _ = stream.set_nodelay(true);
    // A client that takes nothing for so long has no connection any more.
    let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(unread));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(for_head);
    let service = TowerToHyperService::new(router);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // What a client does wrong with its connection ends that, and nothing else.
        _ = connection.as_mut() => return,
        _ = stopped.wait_for(|stops| *stops) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
