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
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::common;

/// Returns the page after a while, and the browser's output; `None` without a browser.
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

/// What a window of so many pixels cuts off: how many cells of tables there are, and each element
/// that ends beyond its right edge. Without the rules for narrow windows, if `is_wide`. Nothing,
/// where there is no browser.
pub fn cut_off(page: SocketAddr, width: u32, is_wide: bool) -> Option<(usize, String)> {
    let frame = format!(
        "<!doctype html><iframe src='/page' width='{width}' height='3000' style='border:0'></iframe>\
         <p id='cells'></p><p id='cut'></p><script>setTimeout(() => {{\
         const it = document.querySelector('iframe').contentDocument, say = (id, text) => document.getElementById(id).textContent = text;\
         const beyond = [...it.querySelectorAll('body *')].filter((one) => one.getBoundingClientRect().right > {width} + 1);\
         say('cells', it.querySelectorAll('td').length);\
         say('cut', beyond.map((one) => `${{one.tagName}} ${{one.className}}`).join(', '));\
         }}, 2500)</script>"
    );
    let framed = common::serve(move |mut near| {
        let mut request = [0; 8 << 10];
        let len = near.read(&mut request).unwrap_or(0);
        let request = String::from_utf8_lossy(&request[..len]);
        let answer = match request.strip_prefix("GET /page ") {
            Some(rest) => ask(page, &format!("GET / {rest}"))
                .replace("frame-ancestors 'none'", "frame-ancestors 'self'")
                .replace(
                    "(max-width: 40rem)",
                    if is_wide {
                        "(max-width: 01rem)"
                    } else {
                        "(max-width: 40rem)"
                    },
                ),
            None if request.starts_with("GET / ") => format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{frame}",
                frame.len()
            ),
            None => ask(page, &request),
        };
        // A client that no longer waits for the response has disconnected.
        let _ = near.write_all(answer.as_bytes());
    });
    let (dom, said) = dom(framed)?;
    let text = |id: &str| {
        let begins = format!("<p id=\"{id}\">");
        let rest = dom
            .split(&begins)
            .nth(1)
            .unwrap_or_else(|| panic!("{dom}\n{said}"));
        rest.split("</p>").next().unwrap().to_owned()
    };
    let cells = text("cells").parse();
    Some((
        cells.unwrap_or_else(|_| panic!("{dom}\n{said}")),
        text("cut"),
    ))
}

fn ask(page: SocketAddr, request: &str) -> String {
    let mut stream: TcpStream = common::connect(page);
    let mut answer = String::new();
    stream.write_all(request.as_bytes()).unwrap();
    stream.read_to_string(&mut answer).unwrap();
    answer
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
            // A client that no longer waits for the response has disconnected.
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
