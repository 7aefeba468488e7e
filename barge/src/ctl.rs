//! `barge ctl`, the client of a server's control socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Subcommand, value_parser};
use command::print;
use command::text::printable;
use layers::limit::Rates;
use serde_json::{Map, Value, json};
use transports::{Addr, dial_unix};

use crate::config::DEVICE_OPTIONS;
use crate::config::live::given_options;
use crate::serve::args::control::parse_addr;
use crate::serve::args::device::{Drive, NinePDevice, VirtiofsDevice};
use crate::serve::args::share::ShareArgs;
use crate::serve::control::protocol::VERSION;
use crate::source::SourceArg;
use crate::status::top::lines::table;
use crate::{CommandResult, Failure};

/// The control socket of the service.
const DEFAULT_SOCKET: &str = "unix:/run/barge/control.sock";

/// Time for the server to reply, besides that of a drain: the process that serves has 30 s, and a
/// request waits for the changes of others.
const REPLY_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Args)]
pub(crate) struct CtlArgs {
    /// Control socket of the server, its --control
    #[arg(long, global = true, value_name = "unix:PATH", default_value = DEFAULT_SOCKET,
          value_parser = parse_addr)]
    control: Addr,
    /// Print the result as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: CtlCommand,
}

#[derive(Subcommand)]
enum CtlCommand {
    /// List shares and endpoints with their addresses and states
    List,
    /// Add a share with its devices, or endpoints
    ///
    /// Relative paths begin in the current directory of this command.
    Add(Box<AddArgs>),
    /// Remove a share with its devices, or an endpoint, at once
    ///
    /// Clients of a removed share get the error of a stale handle. Those of a removed endpoint are
    /// disconnected.
    Remove {
        /// Name of a share, or address of an endpoint as `list` prints it
        #[arg(value_name = "SHARE|ADDRESS")]
        target: String,
    },
    /// Remove a share or an endpoint once its requests are answered
    ///
    /// It accepts no more clients meanwhile.
    Drain {
        /// Name of a share, or address of an endpoint as `list` prints it
        #[arg(value_name = "SHARE|ADDRESS")]
        target: String,
        /// Time after which it is removed in any case, seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 30)]
        timeout: u64,
    },
    /// Follow the paths of a share anew
    ///
    /// A share stays the directory or image that its path led to when the server started, or when
    /// the share was added or changed, whatever is there later. Clients of the share get the error
    /// of a stale handle.
    Reopen {
        /// Name of a share
        share: String,
    },
    /// Give the directory or image of a share up, so that its file system can be unmounted
    ///
    /// The share stays, without a source: its clients get errors until `reopen` follows its paths
    /// anew.
    Release {
        /// Name of a share
        share: String,
    },
    /// Read certificates and the configuration file again, as SIGHUP does
    ///
    /// Shares and endpoints that were added and are not in the file end.
    Reload,
    /// Continue with the installed program, without disconnecting clients
    ///
    /// The program at the server's path takes over the sockets, and the connections of 9P clients
    /// and virtual machines. NFS clients connect again and reclaim their state. If it does not
    /// serve, the running program continues, and the command fails with the reason.
    Upgrade,
    /// List connected clients
    Clients,
    /// Close the connection of a client
    Disconnect {
        /// Number of the client, as `clients` prints it
        client: u64,
    },
    /// Release what the server caches of a share, or of all shares
    ///
    /// These are listings, blocks of images, blocks in the disk cache that no other process uses,
    /// and open descriptors. Clients go on; what they read next is read again.
    Evict {
        /// Name of a share
        share: Option<String>,
    },
    /// Show or change the limits of a share
    ///
    /// Requests that wait follow the new limits. A reload restores those of the configuration file.
    Limit {
        /// Name of a share, '' for the only share without a name [default: show all]
        share: Option<String>,
        /// Limit of all clients together: ops=N,bytes=SIZE[,burst=TIME], or none
        #[arg(long, value_name = "RATES", requires = "share")]
        limit: Option<Rates>,
        /// Limit of each client: ops=N,bytes=SIZE[,burst=TIME], or none
        #[arg(long, value_name = "RATES", requires = "share")]
        client_limit: Option<Rates>,
    },
    /// Print the state of the server, for support
    Debug,
}

#[derive(Args)]
struct AddArgs {
    /// Share to add, with a name
    #[arg(value_name = "NAME=SOURCE")]
    share: Option<SourceArg>,
    #[command(flatten)]
    options: ShareOptions,
    /// Clients that may use the share, as the list in a line of exports(5)
    #[arg(long, value_name = "CLIENTS", requires = "share")]
    clients: Option<String>,
    #[command(flatten)]
    endpoints: EndpointOptions,
}

/// The options of a share, as the keys of its table.
struct ShareOptions(Map<String, Value>);

/// The options of endpoints, as keys.
struct EndpointOptions(Map<String, Value>);

/// Implements the traits of a group of options whose definition is that of a command.
macro_rules! options {
    ($name:ident, $augment:expr) => {
        impl Args for $name {
            fn augment_args(command: Command) -> Command {
                $augment(command)
            }

            fn augment_args_for_update(command: Command) -> Command {
                $augment(command)
            }
        }

        impl FromArgMatches for $name {
            fn from_arg_matches(matches: &ArgMatches) -> Result<$name, clap::Error> {
                let definition: Command = $augment(Command::new("add"));
                let given = given_options(&definition, matches);
                let error = |why| clap::Error::raw(clap::error::ErrorKind::InvalidValue, why);
                given.map($name).map_err(error)
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
                *self = $name::from_arg_matches(matches)?;
                Ok(())
            }
        }
    };
}

options!(ShareOptions, |command| ShareArgs::augment_args(command)
    .mut_args(|arg| arg.help_heading("Options of the share")));
options!(EndpointOptions, endpoint_options);

/// Adds the options of endpoints. Their values are those of `barge serve`, and passed as they are.
fn endpoint_options(command: Command) -> Command {
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name(value)
            .help(help)
            .help_heading("Endpoints")
            .action(clap::ArgAction::Append)
    };
    command.args([
        option("9p", "ADDR", "Address to serve 9P at; may be repeated")
            .value_parser(value_parser!(Addr)),
        option(
            "virtiofs",
            "SOCKET",
            "vhost-user socket for virtiofs; may be repeated",
        )
        .value_parser(value_parser!(VirtiofsDevice)),
        option(
            "virtio-9p",
            "SOCKET",
            "vhost-user socket for 9P; may be repeated",
        )
        .value_parser(value_parser!(NinePDevice)),
        option(
            "block",
            "SOCKET",
            "vhost-user socket for a disk; may be repeated",
        )
        .value_parser(value_parser!(Drive)),
        option("nbd", "ADDR", "Address to serve NBD at; may be repeated")
            .value_parser(value_parser!(Addr)),
    ])
}

/// Runs `barge ctl`.
pub(crate) fn run(args: &CtlArgs) -> CommandResult {
    let mut connection = Connection::open(&args.control)?;
    let target = |prefix: &str, target: &str| match target.contains([':', '/']) {
        true => (format!("endpoint.{prefix}"), "address", target.to_owned()),
        false => (format!("share.{prefix}"), "name", target.to_owned()),
    };
    let call =
        |connection: &mut Connection, method: &str, params: Value| connection.call(method, params);
    let (result, text): (_, fn(&Value) -> String) = match &args.command {
        CtlCommand::List => (call(&mut connection, "server.list", json!({})), list_text),
        CtlCommand::Add(args) => (add(&mut connection, args), added_text),
        CtlCommand::Remove { target: name } => {
            let (method, key, name) = target("remove", name);
            (
                call(&mut connection, &method, json!({ key: name })),
                no_text,
            )
        }
        CtlCommand::Drain {
            target: name,
            timeout,
        } => {
            let (method, key, name) = target("drain", name);
            let params = json!({ key: name, "timeout": timeout });
            (call(&mut connection, &method, params), drained_text)
        }
        CtlCommand::Reopen { share } => {
            let params = json!({ "name": share });
            (call(&mut connection, "share.reopen", params), no_text)
        }
        CtlCommand::Release { share } => {
            let params = json!({ "name": share });
            (call(&mut connection, "share.release", params), no_text)
        }
        CtlCommand::Reload => (call(&mut connection, "server.reload", json!({})), no_text),
        CtlCommand::Upgrade => (upgrade(&mut connection, &args.control), upgraded_text),
        CtlCommand::Clients => (
            call(&mut connection, "client.list", json!({})),
            clients_text,
        ),
        CtlCommand::Disconnect { client } => {
            let params = json!({ "id": client });
            (call(&mut connection, "client.disconnect", params), no_text)
        }
        CtlCommand::Evict { share } => {
            let params = match share {
                Some(share) => json!({ "name": share }),
                None => json!({}),
            };
            (call(&mut connection, "cache.evict", params), evicted_text)
        }
        CtlCommand::Limit {
            share,
            limit,
            client_limit,
        } => {
            let given = [("limit", limit), ("client_limit", client_limit)];
            let given = given.into_iter().filter_map(|(key, rates)| {
                let rates = rates.as_ref()?;
                Some((key.to_owned(), json!(rates.to_string())))
            });
            let mut params: Map<_, _> = given.collect();
            let method = match params.is_empty() {
                true => "limit.get",
                false => "limit.set",
            };
            params.extend(share.iter().map(|name| ("name".to_owned(), json!(name))));
            (call(&mut connection, method, params.into()), limits_text)
        }
        CtlCommand::Debug => (call(&mut connection, "server.debug", json!({})), debug_text),
    };
    let result = result?;
    let text = match args.json {
        true => format!("{result}\n"),
        false => text(&result),
    };
    print(text)?;
    Ok(ExitCode::SUCCESS)
}

/// Time for the installed program to serve after an upgrade.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(60);

/// Upgrades the server, and returns its list once the installed program serves.
fn upgrade(connection: &mut Connection, addr: &Addr) -> Result<Value, Failure> {
    // The program that continues has closed the connection.
    if let Some(result) = connection.call_or_end("server.upgrade", json!({}))? {
        return Ok(result);
    }
    let deadline = Instant::now() + UPGRADE_TIMEOUT;
    loop {
        let listed = Connection::open(addr).and_then(|mut it| it.call("server.list", json!({})));
        match listed {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            listed => return listed,
        }
    }
}

/// Adds a share with its devices, then endpoints of all shares.
fn add(connection: &mut Connection, args: &AddArgs) -> Result<Value, Failure> {
    let mut endpoints = args.endpoints.0.clone();
    let mut result = json!({ "shares": [], "endpoints": [] });
    let Some(share) = &args.share else {
        if !args.options.0.is_empty() || endpoints.is_empty() {
            return Err(Failure::usage("expected NAME=SOURCE, or endpoints alone"));
        }
        return connection.call("endpoint.add", json!({ "endpoint": endpoints }));
    };
    let Some(name) = &share.name else {
        return Err(Failure::usage(format!(
            "expected NAME={0}, got {0}",
            share.source.1.shown()
        )));
    };
    let table = share_table(args, share, name, &mut endpoints);
    let mut merge = |added: Value| {
        for list in ["shares", "endpoints"] {
            if let (Some(all), Some(new)) = (result[list].as_array_mut(), added[list].as_array()) {
                all.extend(new.iter().cloned());
            }
        }
    };
    merge(connection.call("share.add", json!({ "share": table }))?);
    if !endpoints.is_empty() {
        merge(connection.call("endpoint.add", json!({ "endpoint": endpoints }))?);
    }
    Ok(result)
}

/// Returns the table of `share`, whose name is `name`, with the options of `args` and its devices
/// of `endpoints`, which are removed there.
fn share_table(
    args: &AddArgs,
    share: &SourceArg,
    name: &str,
    endpoints: &mut Map<String, Value>,
) -> Map<String, Value> {
    let mut table = args.options.0.clone();
    table.insert("name".into(), json!(name));
    table.insert("source".into(), json!(share.source.0.for_parser()));
    if let Some(clients) = &args.clients {
        table.insert("clients".into(), json!(clients));
    }
    for device in DEVICE_OPTIONS {
        table.extend(
            endpoints
                .remove(device)
                .map(|sockets| (device.to_owned(), sockets)),
        );
    }
    table
}

/// A connection to a server.
struct Connection {
    lines: BufReader<UnixStream>,
    addr: String,
    next: u64,
}

impl Connection {
    fn open(addr: &Addr) -> Result<Connection, Failure> {
        let failed = |error| Failure::new(format!("{addr}: {error}"));
        let Addr::Unix(path) = addr else {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        };
        let socket = dial_unix(path).map_err(failed)?;
        Ok(Connection {
            lines: BufReader::new(socket.into()),
            addr: addr.to_string(),
            next: 0,
        })
    }

    /// Sends a request, and returns the result of the reply.
    fn call(&mut self, method: &str, params: Value) -> Result<Value, Failure> {
        let result = self.call_or_end(method, params)?;
        let closed = || Failure::new(format!("{}: the server closed the connection", self.addr));
        result.ok_or_else(closed)
    }

    /// Does the same as [`Connection::call`]; returns `None` if the server closes the connection.
    fn call_or_end(&mut self, method: &str, params: Value) -> Result<Option<Value>, Failure> {
        self.next += 1;
        let drained = params["timeout"].as_u64();
        let request = json!({
            "version": VERSION,
            "id": self.next,
            "method": method,
            "params": params,
        });
        let failed = |why: &dyn std::fmt::Display| Failure::new(format!("{}: {why}", self.addr));
        let timeout = REPLY_TIMEOUT + Duration::from_secs(drained.unwrap_or(0));
        let mut line = Vec::new();
        let sent = self
            .lines
            .get_mut()
            .write_all(format!("{request}\n").as_bytes());
        let waits = self.lines.get_ref().set_read_timeout(Some(timeout));
        waits.map_err(|error| failed(&error))?;
        // The server may have refused the connection, with a reason.
        let received = self.lines.read_until(b'\n', &mut line);
        received.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => failed(&format_args!("no reply within {timeout:?}")),
            _ => failed(&error),
        })?;
        if line.is_empty() {
            sent.map_err(|error| failed(&error))?;
            return Ok(None);
        }
        let mut reply: Value = serde_json::from_slice(&line).map_err(|error| failed(&error))?;
        if let Some(error) = reply.get("error") {
            let message = error["message"].as_str().unwrap_or("unknown error");
            return Err(match error["code"].as_str() {
                Some("invalid-params") => Failure::usage(message),
                _ => Failure::new(message),
            });
        }
        Ok(Some(reply["result"].take()))
    }
}

/// Returns the cells of a row: the values of `keys`.
fn row<const N: usize>(object: &Value, keys: [&str; N]) -> [String; N] {
    keys.map(|key| match &object[key] {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => printable(text),
        other => other.to_string(),
    })
}

fn rows<const N: usize>(list: &Value, title: [&str; N], keys: [&str; N]) -> String {
    let all = list.as_array().into_iter().flatten();
    let mut text = String::new();
    table(
        &mut text,
        title,
        all.map(|object| row(object, keys)).collect(),
    );
    text
}

fn list_text(result: &Value) -> String {
    let shares = rows(
        &result["shares"],
        ["SHARE", "SOURCE", "STATE"],
        ["name", "source", "state"],
    );
    let endpoints = rows(
        &result["endpoints"],
        ["PROTOCOL", "ADDRESS", "SHARE", "STATE"],
        ["protocol", "address", "share", "state"],
    );
    let all = result["shares"].as_array().into_iter().flatten();
    let failed = all.filter_map(|share| {
        let error = share["error"].as_str()?;
        let text = format!("{}: {error}", share["name"].as_str()?);
        Some(format!("{}\n", printable(&text)))
    });
    let failed: String = failed.collect();
    format!("{shares}{failed}\n{endpoints}")
}

fn clients_text(result: &Value) -> String {
    rows(
        &result["clients"],
        [
            "CLIENT", "ADDRESS", "PROTOCOL", "VERSION", "USER", "REQUESTS", "ENDPOINT",
        ],
        [
            "id", "address", "protocol", "version", "user", "requests", "endpoint",
        ],
    )
}

fn limits_text(result: &Value) -> String {
    // A change returns the share that it changed.
    let shares = match result.get("shares") {
        Some(shares) => shares.clone(),
        None => json!([result]),
    };
    rows(
        &shares,
        [
            "SHARE",
            "LIMIT",
            "CLIENT LIMIT",
            "DELAYED",
            "WAITED",
            "WAITING",
            "CLIENTS",
        ],
        [
            "name",
            "limit",
            "client_limit",
            "delayed",
            "waited",
            "waiting",
            "clients",
        ],
    )
}

/// Formats the options of QEMU and the commands of added endpoints.
fn added_text(result: &Value) -> String {
    let mut text = String::new();
    for endpoint in result["endpoints"].as_array().into_iter().flatten() {
        let qemu = endpoint["qemu"].as_str().into_iter();
        let commands = endpoint["commands"].as_array().into_iter().flatten();
        for line in qemu.chain(commands.filter_map(Value::as_str)) {
            text.push_str(&printable(line));
            text.push('\n');
        }
    }
    text
}

fn drained_text(result: &Value) -> String {
    match result["drained"].as_bool() {
        Some(false) => "removed with requests in flight\n".into(),
        _ => String::new(),
    }
}

fn evicted_text(result: &Value) -> String {
    rows(
        &result["shares"],
        ["SHARE", "MEMORY", "DISK", "DESCRIPTORS"],
        ["name", "memory_bytes", "disk_bytes", "descriptors"],
    )
}

fn upgraded_text(result: &Value) -> String {
    let text = |key: &str| printable(result[key].as_str().unwrap_or_default());
    format!("barge {} serves\n", text("version"))
}

fn debug_text(result: &Value) -> String {
    format!("{result:#}\n")
}

fn no_text(_: &Value) -> String {
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_clients_are_not_printed() {
        let client = json!({
            "id": 1,
            "address": "\u{1b}]0;x\u{7}",
            "protocol": "9p",
            "version": "a\nb",
            "user": "",
        });
        let text = clients_text(&json!({ "clients": [client] }));
        let row = text.lines().nth(1).expect("a row");
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(cells, ["1", "?]0;x?", "9p", "a?b", "-", "-", "-"]);
        assert_eq!(text.lines().count(), 2);
    }
}
