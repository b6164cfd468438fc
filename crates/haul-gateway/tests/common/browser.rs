//! The page in Chromium, where it is installed.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "each test uses its part of it"
)]

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::common;

/// The page after a while, and what the browser said; nothing, where there is none.
pub fn dom(address: SocketAddr) -> Option<(String, String)> {
    let is_there = Command::new("chromium").arg("--version").output();
    if !is_there.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: no chromium");
        return None;
    }
    let output = run(address, &["--virtual-time-budget=3000", "--dump-dom"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Some((String::from_utf8_lossy(&output.stdout).into_owned(), said))
}

/// A picture of the page in a file, after it was open for some seconds.
pub fn picture(address: SocketAddr, file: &Path) {
    let file = format!("--screenshot={}", file.display());
    let size = std::env::var("GATEWAY_PAGE_SIZE").unwrap_or_else(|_| "1180,1250".to_owned());
    let size = format!("--window-size={size}");
    let mut flags = vec![&*file, &*size, "--hide-scrollbars"];
    flags.push("--virtual-time-budget=25000");
    if std::env::var_os("GATEWAY_PAGE_DARK").is_some() {
        flags.push("--blink-settings=preferredColorScheme=0");
    }
    run(in_real_time(address), &flags);
}

/// The time of the browser is its own and goes on as soon as it waits for nothing: here it waits a
/// second for each answer.
fn in_real_time(page: SocketAddr) -> SocketAddr {
    common::serve(move |mut near| {
        let mut request = [0; 8 << 10];
        let len = near.read(&mut request).unwrap_or(0);
        if request.starts_with(b"GET /api") {
            std::thread::sleep(Duration::from_secs(1));
        }
        let mut far = common::connect(page);
        if far.write_all(&request[..len]).is_ok() {
            // Who does not want the answer any more has gone.
            let _ = std::io::copy(&mut far, &mut near);
        }
    })
}

fn run(address: SocketAddr, flags: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new("timeout")
        .args([
            "--kill-after=5",
            "120",
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--enable-logging=stderr",
        ])
        .arg(format!("--user-data-dir={}", dir.path().display()))
        .args(flags)
        .arg(format!("http://{address}/"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    output
}
