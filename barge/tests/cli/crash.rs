//! Guests whose server is killed: the next process continues their virtiofs devices. The guest is
//! `barge mount` here, which has no connection to open again.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use barge_client::Client;
use vfs_testkit::wait_until;

use crate::mount::{Mounted, holds_removed, unmount};
use crate::served::{BARGE, ServerProcess, stdout_of};
use crate::takeover::{
    Place, Random, kill_serving, kills, may_continue, under_load, write_removed,
};

/// A directory, its server, and the mount of a guest.
struct Guest {
    place: Place,
    served: ServerProcess,
    mounted: Mounted,
}

impl Guest {
    fn new() -> Guest {
        let place = Place::new();
        let (served, url) = serve(&place);
        let mounted = Mounted::new(&[&url], &place.at());
        Guest {
            place,
            served,
            mounted,
        }
    }

    fn kill_server(&self) -> u32 {
        kill_serving(self.served.broker_id(), || self.served.serving_id())
    }

    fn upgrade_server(&self) {
        let mut command = Command::new(BARGE);
        command.args(["ctl", "--control", &control(&self.place), "upgrade"]);
        stdout_of(&command.output().expect("runs"));
    }

    fn end(self) {
        unmount(&self.place.at());
        assert!(self.mounted.ended().success());
        assert!(self.served.stop().success());
    }
}

/// Returns the address of the control socket of the server of `place`.
fn control(place: &Place) -> String {
    format!("unix:{}", place.dir.path().join("control").display())
}

/// Serves the directory of `place` at a socket in it, whose URL is returned. The log is beside.
fn serve(place: &Place) -> (ServerProcess, String) {
    let path = |name: &str| place.dir.path().join(name);
    let mut command = Command::new(BARGE);
    command.arg("serve").arg(place.source());
    command.arg("--virtiofs").arg(path("socket"));
    command.arg("--virtiofs-locks=shared");
    command.args(["--control", &control(place)]);
    let log = File::create(path("log")).expect("a file");
    let served = ServerProcess::run({
        command.stderr(Stdio::from(log));
        command
    });
    (served, format!("virtiofs:{}", path("socket").display()))
}

#[test]
fn a_guest_notices_only_pauses_when_the_server_is_killed_and_upgraded() {
    if !may_continue() {
        return;
    }
    let guest = Guest::new();
    let mut random = Random(7);
    let mut longest = Duration::ZERO;
    under_load(&guest.place, || {
        for number in 0..kills() {
            std::thread::sleep(Duration::from_millis(300 + random.below(150)));
            if number % 4 == 3 {
                guest.upgrade_server();
            }
            guest.kill_server();
            let start = Instant::now();
            fs::metadata(guest.place.at().join("counter")).expect("there");
            longest = longest.max(start.elapsed());
        }
    });
    println!(
        "{} kills; a file was there again after {longest:?} at most",
        kills()
    );
    guest.end();
}

#[test]
fn a_file_without_a_name_stays_open_for_a_guest_when_the_server_is_killed() {
    if !may_continue() {
        return;
    }
    // A process that continues after an upgrade may crash, too.
    for upgrades in [false, true] {
        let guest = Guest::new();
        write_removed(&guest.place, || {
            if upgrades {
                guest.upgrade_server();
            }
            guest.kill_server();
        });
        let (served, dir) = (&guest.served, guest.place.source());
        wait_until("the files are gone", || {
            [served.id(), served.serving_id()]
                .iter()
                .all(|&process| !holds_removed(process, &dir))
        });
        guest.end();
    }
}

#[test]
fn a_server_that_does_not_last_closes_the_devices_of_its_guests() {
    if !may_continue() {
        return;
    }
    let place = Place::new();
    fs::write(place.source().join("f"), "here").expect("written");
    let (served, url) = serve(&place);
    let client = Client::open(&url).expect("connected");
    assert_eq!(client.read("f").expect("read"), b"here");
    let log = || fs::read_to_string(place.dir.path().join("log")).expect("a log");
    let closed = "the devices of its guests are closed";
    wait_until(closed, || {
        // As if its guest made it crash at once.
        kill_serving(served.broker_id(), || served.serving_id());
        log().contains(closed)
    });
    client.read("f").expect_err("the connection is closed");
    let again = Client::open(&url).expect("connected");
    assert_eq!(again.read("f").expect("read"), b"here");
    drop((client, again));
    assert!(served.stop().success());
}
