//! The status page of the program.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hostile::process::barge;
use vfs::memory::MemoryBudget;

use super::{Guard, TestServer, assert_all_pass, case};

/// The protocol of this stage.
#[derive(Debug)]
struct Http;

/// The program with a status page.
struct StatusPage {
    child: Child,
    addr: String,
}

impl StatusPage {
    /// Starts the program. Returns `None` if it is not built.
    fn start() -> Option<StatusPage> {
        let mut child = Command::new(barge()?)
            .args(["serve", "mem:", "--9p", "tcp:127.0.0.1:0", "--http", "0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let stdout = child.stdout.take().expect("piped");
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let said: Vec<_> = lines.take_while(|line| line != "ready").collect();
        let addr = said.iter().find_map(|line| line.strip_prefix("http://"));
        Some(StatusPage {
            child,
            addr: addr.expect("a page").trim_end_matches('/').into(),
        })
    }
}

impl Drop for StatusPage {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl TestServer for StatusPage {
    type Client = HttpClient;

    fn client(&self, _: &str) -> HttpClient {
        HttpClient(self.addr.clone())
    }

    /// The budget is not accessible from outside the process.
    fn budget(&self) -> Option<&MemoryBudget> {
        None
    }
}

/// A client that connects for each request, since the server closes the connection after a reply.
struct HttpClient(String);

impl HttpClient {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.0).expect("connected");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        stream
    }
}

/// Timeout of a reply: more than any machine takes, and less than 200 clients take at five seconds
/// each.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Sends incomplete requests.
fn slow_requests(page: &StatusPage) -> Guard {
    let attacker = page.client("attacker");
    let begin = |_| {
        let mut stream = attacker.connect();
        // The server may already have closed a refused connection.
        let _ = stream.write_all(b"GET / HT");
        stream
    };
    Box::new((0..200).map(begin).collect::<Vec<_>>())
}

fn asks_for_health(client: &mut HttpClient) {
    let mut stream = client.connect();
    let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(request).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nok\n"),
        "{answer}"
    );
}

#[test]
fn one_client_that_takes_all_connections_of_the_page_makes_no_other_fail() {
    if barge().is_none() {
        return println!("skipped: barge has not been built");
    }
    let serve = || StatusPage::start().expect("built");
    assert_all_pass([case(
        Http,
        "connections",
        serve,
        slow_requests,
        asks_for_health,
    )]);
}
