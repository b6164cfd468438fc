//! This version beside the next one: with fields and messages that it does not know, and with
//! versions of the protocols that it does not speak (docs/protocol/versions.md).

use crate::support::{
    Client, Ended, MIB, Place, Server, haul, make_file, read_file, start_with, text,
};

const THIS: &str = "";
/// The next minor version.
const NEXT: &str = "minor";
/// A later one that speaks other versions of the protocols.
const LATER: &str = "incompatible";

/// A server of files and its key, which clients have as well: everything is sealed.
struct Site {
    place: Place,
    server: Server,
    key: String,
    server_speaks: &'static str,
}

fn environment(speaks: &str) -> Vec<String> {
    match speaks {
        THIS => Vec::new(),
        next => vec![format!("HAUL_NEXT={next}")],
    }
}

impl Site {
    fn start(server_speaks: &'static str) -> Self {
        let place = Place::new();
        let key = text(&place.outside("shared.pem"));
        haul(["key", "new", "--key", &key]).ok();
        let server = Self::serve(&place, &key, server_speaks);
        Self {
            place,
            server,
            key,
            server_speaks,
        }
    }

    fn serve(place: &Place, key: &str, speaks: &str) -> Server {
        let dir = text(&place.server(""));
        let args = [
            "serve",
            &dir,
            "--listen",
            "127.0.0.1:0",
            "--shared-key",
            key,
        ];
        Server::start_with(&environment(speaks), args)
    }

    /// Replaces the server by one of the other version.
    fn upgrade(&mut self) {
        self.server_speaks = other(self.server_speaks);
        self.server.kill();
        self.server = Self::serve(&self.place, &self.key, self.server_speaks);
    }

    fn start_client(&self, speaks: &str, args: &[&str]) -> Client {
        let key = ["--shared-key", &self.key];
        start_with(&environment(speaks), [args, &key].concat())
    }

    fn client(&self, speaks: &str, args: &[&str]) -> Ended {
        self.start_client(speaks, args).end()
    }
}

const fn other(speaks: &str) -> &'static str {
    if speaks.is_empty() { NEXT } else { THIS }
}

#[test]
fn files_move_both_ways_between_two_versions() {
    for server_speaks in [THIS, NEXT] {
        let site = Site::start(server_speaks);
        let place = &site.place;
        let tree = place.client("tree");
        std::fs::create_dir_all(tree.join("a/b")).unwrap();
        let content = make_file(&tree.join("a/b/big"), 3 * MIB + 7, 1);
        make_file(&tree.join("a/small"), 1000, 2);
        std::os::unix::fs::symlink("small", tree.join("a/link")).unwrap();
        let (from, back) = (text(&tree), text(&place.outside("back/")));
        let run = |args: &[&str]| site.client(other(server_speaks), args).ok();
        for channel in ["tcp", "udt"] {
            run(&["send", "--channel", channel, &from, &site.server.at("")]);
            assert!(read_file(&place.server("tree/a/b/big")) == content);
            run(&["get", "--channel", channel, &site.server.at("tree"), &back]);
            assert!(read_file(&place.outside("back/tree/a/b/big")) == content);
            std::fs::remove_dir_all(place.server("tree")).unwrap();
            std::fs::remove_dir_all(place.outside("back")).unwrap();
        }
        // Listings: those of `ls`, with digests, and with deletions.
        let at = site.server.at("");
        run(&["sync", &from, &at]);
        let listed = run(&["ls", &site.server.at("tree/a/")]);
        assert!(listed.stdout.contains(" small\n"), "{}", listed.stdout);
        run(&["verify", &from, &site.server.at("tree")]);
        std::fs::remove_file(tree.join("a/small")).unwrap();
        run(&["sync", "--delete", "--checksum", &from, &at]);
        assert!(!place.server("tree/a/small").exists());
        // Measurements on the server's port.
        let at = format!("127.0.0.1:{}", site.server.port);
        for engine in ["tcp", "udt"] {
            run(&["bench", "run", &at, "--engine", engine, "--bytes", "1MB"]);
        }
        run(&["bench", "rdma", &at, "--iterations", "10"]);
    }
}

#[test]
fn a_transfer_that_one_version_began_is_resumed_by_the_other() {
    for server_speaks in [THIS, NEXT] {
        let mut site = Site::start(server_speaks);
        let source = text(&site.place.client("big"));
        let content = make_file(&site.place.client("big"), 40 * MIB, 3);
        let slow = |to: &str| {
            let args = ["send", &source, to, "--rate", "200Mbit", "--json-stream"];
            args.map(str::to_owned)
        };
        let args = slow(&site.server.at(""));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let client = site.start_client(server_speaks, &args);
        client.wait_for_bytes(20 * MIB as u64);
        client.kill();
        site.upgrade();
        let at = site.server.at("");
        let ended = site.client(other(server_speaks), &["send", "--json", &source, &at]);
        let resumed = ended.ok().json()["resumed_bytes"].as_u64().unwrap();
        assert!(resumed >= MIB as u64, "{resumed} bytes were resumed");
        assert!(read_file(&site.place.server("big")) == content);
    }
}

#[test]
fn versions_without_a_common_protocol_are_one_line_at_both_ends() {
    for (client, server, theirs, ours) in [(LATER, THIS, 8, 7), (THIS, LATER, 7, 8)] {
        let site = Site::start(server);
        make_file(&site.place.client("a"), 10, 1);
        let version = |speaks| {
            if speaks == THIS {
                "haul 0.1.0"
            } else {
                "haul 0.2.0"
            }
        };
        let (server_is, client_is) = (version(server), version(client));
        let line = format!(
            "{server_is} here speaks files/{ours}; the client, {client_is}, speaks files/{theirs}"
        );
        let (from, at) = (text(&site.place.client("a")), site.server.at(""));
        site.client(client, &["send", &from, &at]).failed(7, &line);
        site.server.wait_for_log(&line);
        site.client(
            client,
            &["get", &site.server.at("a"), &text(&site.place.client(""))],
        )
        .failed(7, &line);
        site.client(client, &["ls", &at])
            .failed(7, "here speaks listing");
        let at = format!("127.0.0.1:{}", site.server.port);
        let bench = ["bench", "run", &at, "--engine", "tcp", "--bytes", "1MB"];
        site.client(client, &bench).failed(7, "here speaks bench");
    }
}
