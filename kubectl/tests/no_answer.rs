//! Every way of not reaching a cluster is told with what to do about it, and within seconds.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
    thread,
};

fn kubectl(folder: &Path, kubeconfig: Option<&str>, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-thresh"));
    command.args(args).env_clear().env("HOME", folder).stdin(Stdio::null());
    if let Some(text) = kubeconfig {
        let path = folder.join("kubeconfig");
        fs::write(&path, text).unwrap();
        command.env("KUBECONFIG", path);
    }
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

fn config(server: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: \"{server}\"}}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n"
    )
}

/// Answers every request on one address as an API server does: `status` with `body`.
fn server(status: &'static str, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut asked = Vec::new();
            let mut byte = [0];
            while !asked.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
                asked.push(byte[0]);
            }
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
        }
    });
    format!("http://{address}")
}

#[test]
fn no_kubeconfig_a_broken_one_and_a_context_it_lacks_are_three_different_faults() {
    let folder = tempfile::tempdir().unwrap();
    let said = kubectl(folder.path(), None, &["status"]);
    assert!(
        said.starts_with("error: no cluster: $KUBECONFIG names no file") && said.contains("fix: set KUBECONFIG"),
        "{said}"
    );
    let said = kubectl(folder.path(), Some("clusters: [{"), &["status"]);
    assert!(
        said.starts_with("error: the kubeconfig cannot be used: ") && said.contains("fix: kubectl config view"),
        "{said}"
    );
    let said = kubectl(folder.path(), Some(&config("http://127.0.0.1:1")), &["status", "--context", "other"]);
    assert!(said.contains("other") && said.contains("another context with --context"), "{said}");
    let said = kubectl(folder.path(), None, &["status", "--kubeconfig", "/nowhere/config"]);
    assert_eq!(said, "error: --kubeconfig /nowhere/config: no such file\n");
}

#[test]
fn a_server_that_is_not_there_does_not_know_us_or_has_no_runs_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let said = kubectl(folder.path(), Some(&config(&format!("http://{nobody}"))), &["why", "run"]);
    assert!(said.contains("no answer from the API server: Connection refused"), "{said}");
    assert!(said.contains("fix: kubectl cluster-info"), "{said}");
    for (status, body, words) in [
        (
            "401 Unauthorized",
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#,
            ["the API server does not know who asks: Unauthorized", "fix: log in again"],
        ),
        (
            "404 Not Found",
            "404 page not found\n",
            ["this cluster knows no RLJobs (404 page not found)", "fix: install Thresh on it"],
        ),
    ] {
        let config = config(&server(status, body));
        for args in [&["status"][..], &["status", "run"], &["why", "run"], &["events", "run"], &["logs", "run"]] {
            let said = kubectl(folder.path(), Some(&config), args);
            assert!(words.iter().all(|words| said.contains(words)), "{args:?}: {said}");
        }
    }
}

#[test]
fn a_run_is_not_looked_for_in_all_namespaces() {
    let folder = tempfile::tempdir().unwrap();
    for args in [&["status", "run", "-A"][..], &["-A", "why", "run"], &["logs", "run", "-A"]] {
        let said = kubectl(folder.path(), Some(&config("http://127.0.0.1:1")), args);
        assert!(
            said.starts_with("error: -A run: a run is found in one namespace\n  fix: name it with -n"),
            "{args:?}: {said}"
        );
    }
}
