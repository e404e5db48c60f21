//! What went wrong between us and the API server, with what to do about it.

use anyhow::{Error, anyhow};
use kube::config::KubeconfigError;

/// No kubeconfig, or one that cannot be used.
pub fn no_way(error: &KubeconfigError) -> Error {
    match error {
        KubeconfigError::FindPath => none(),
        KubeconfigError::ReadConfig(why, _) if why.kind() == std::io::ErrorKind::NotFound => none(),
        KubeconfigError::ReadConfig(why, path) => {
            anyhow!(
                "kubeconfig {}: {why}\n  fix: make that file readable, or name another with --kubeconfig",
                path.display()
            )
        }
        other => anyhow!(
            "the kubeconfig cannot be used: {other}\n  fix: kubectl config view shows what it holds; name another with --kubeconfig, \
             or another context with --context"
        ),
    }
}

fn none() -> Error {
    anyhow!(
        "no cluster: $KUBECONFIG names no file, and there is no ~/.kube/config\n  fix: set KUBECONFIG, or name a file with \
         --kubeconfig; for a run on this machine: thresh status"
    )
}

/// The server's own words, or why there are none.
pub fn said(error: kube::Error) -> Error {
    match error {
        kube::Error::Api(status) => match status.code {
            401 => anyhow!(
                "the API server does not know who asks: {}\n  fix: log in again, or name another user's context with --context",
                status.message.trim()
            ),
            403 => anyhow!(
                "{}\n  fix: the role `view` is enough, with the chart's rbac.aggregate; ask who gives roles here",
                status.message
            ),
            404 => anyhow!(
                "this cluster knows no RLJobs ({})\n  fix: install Thresh on it, or name another cluster with --context",
                status.message.trim()
            ),
            _ if !status.message.is_empty() => anyhow!("{}", status.message),
            code => anyhow!("the API server answered {code} without a word"),
        },
        kube::Error::Service(why) => silent(&*why),
        kube::Error::HyperError(why) => silent(&why),
        kube::Error::Auth(why) => anyhow!(
            "the kubeconfig's way to log in failed: {why}\n  fix: run that command by hand, or name another context with --context"
        ),
        other => anyhow!(other),
    }
}

fn silent(why: &(dyn std::error::Error + 'static)) -> Error {
    let mut cause = why;
    while let Some(next) = cause.source() {
        cause = next;
    }
    anyhow!(
        "no answer from the API server: {cause}\n  fix: kubectl cluster-info asks the same one; name another with --context or \
         --kubeconfig"
    )
}
