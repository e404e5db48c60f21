//! Credentials: one Secret for each run, ServingCluster and RolloutPool, made once. Secrets are read by name, never listed, so nobody
//! hears of one that a hand deletes: it is missed by a pod that cannot begin, or by the look of every now and then, and comes back with
//! the token that the living pods have.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::core::v1::{Pod, Secret},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, api::PostParams};
use plan::{build, pod_facts};

use crate::{
    apply::ask,
    context::Context,
    error::{Error, Result},
    kind::{Kind, identity},
};

/// Bytes of a token, before they are written in hex.
const TOKEN_BYTES: usize = 32;

/// The object's token; its Secret is made if there is none, with the token that is `known`, or a fresh one.
pub async fn ensure<K: Kind>(context: &Context, object: &K, known: Option<&str>) -> Result<String> {
    let (namespace, _, uid) = identity(object);
    let owner = object.owner();
    let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let name = build::token_secret(&owner.name);
    if let Some(there) = ask(&format!("get Secret {name}"), api.get_opt(&name)).await? {
        return token_of(&there, &owner);
    }
    let token = match known {
        Some(known) => {
            tracing::warn!(namespace, "Secret {name} is gone: made again");
            known.to_owned()
        }
        None => fresh_token()?,
    };
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(BTreeMap::from([("app.kubernetes.io/managed-by".into(), "thresh-operator".into())])),
            owner_references: Some(vec![owner.clone()]),
            ..ObjectMeta::default()
        },
        // Not `immutable`: of such a one a kubelet shows what it read first for as long as a pod of its node names it, even when an
        // owner of that name was made anew, with another token.
        data: Some(BTreeMap::from([(build::TOKEN_KEY.to_owned(), ByteString(token.into_bytes()))])),
        ..Secret::default()
    };
    match ask(&format!("create Secret {name}"), api.create(&PostParams::default(), &secret)).await {
        Ok(made) => token_of(&made, &owner),
        // Made meanwhile: whose is it?
        Err(error) if error.is_conflict() => {
            let there = ask(&format!("get Secret {name}"), api.get(&name)).await?;
            tracing::debug!(uid, "its Secret was made by somebody faster");
            token_of(&there, &owner)
        }
        Err(error) => Err(error),
    }
}

/// Whether a pod cannot begin for want of the token of an owner of that name.
fn missed(pods: &[Pod], owner: &str) -> bool {
    let name = build::token_secret(owner);
    pods.iter().filter_map(pod_facts::waiting).any(|(reason, message)| {
        reason == "CreateContainerConfigError" && message.contains(&format!("secret \"{name}\" not found"))
    })
}

/// Brings back the Secret of an object that this operator has seen, if one of `pods` cannot begin without it.
pub async fn restore_missed<K: Kind>(context: &Context, object: &K, pods: &[Pod]) -> Result<()> {
    let (_, name, uid) = identity(object);
    if !missed(pods, name) {
        return Ok(());
    }
    let known = K::memory(context).token(uid).filter(|_| object.meta().deletion_timestamp.is_none());
    let Some((token, _)) = known else { return Ok(()) };
    ensure(context, object, Some(&token)).await.map(drop)
}

fn token_of(secret: &Secret, owner: &OwnerReference) -> Result<String> {
    let ours = secret.metadata.owner_references.iter().flatten().any(|one| one.uid == owner.uid);
    let token = secret.data.as_ref().and_then(|data| data.get(build::TOKEN_KEY));
    let token = token.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
    token.filter(|_| ours).ok_or_else(|| Error::NameTaken {
        kind: "Secret".into(),
        name: secret.metadata.name.clone().unwrap_or_default(),
        owner: owner_of(&secret.metadata),
    })
}

/// Whose an object is, for people.
pub fn owner_of(meta: &ObjectMeta) -> String {
    let owners = meta.owner_references.iter().flatten();
    match owners.clone().find(|one| one.controller == Some(true)).or_else(|| owners.clone().next()) {
        Some(owner) if meta.deletion_timestamp.is_some() => {
            format!("{} {}, and is on its way out", owner.kind, owner.name)
        }
        Some(owner) => format!("{} {}", owner.kind, owner.name),
        None => "somebody else".into(),
    }
}

fn fresh_token() -> Result<String> {
    use std::{fmt::Write, io::Read};
    let mut bytes = [0u8; TOKEN_BYTES];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(Error::NoRandomness)?;
    Ok(bytes.iter().fold(String::new(), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn waiting(reason: &str, message: &str) -> Pod {
        let state = json!({"waiting": {"reason": reason, "message": message}});
        let container =
            json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        serde_json::from_value(json!({"status": {"containerStatuses": [container]}})).unwrap()
    }

    #[test]
    fn a_secret_that_a_hand_deleted_is_missed_by_the_pod_that_cannot_begin_without_it() {
        let error = "CreateContainerConfigError";
        assert!(missed(&[waiting(error, "secret \"a-token\" not found")], "a"));
        assert!(!missed(&[waiting(error, "secret \"aa-token\" not found")], "a"), "another's");
        assert!(!missed(&[waiting(error, "configmap \"mine\" not found")], "a"), "the user's own");
        assert!(!missed(&[waiting("ContainerCreating", "")], "a"));
    }

    #[test]
    fn who_holds_a_name_that_is_needed_is_named() {
        let meta = |owners: Value| -> ObjectMeta {
            serde_json::from_value(json!({"name": "a-token", "ownerReferences": owners})).unwrap()
        };
        let owner = json!({"apiVersion": "v1", "kind": "ServingCluster", "name": "a", "uid": "u", "controller": true});
        assert_eq!(owner_of(&meta(json!([owner]))), "ServingCluster a");
        assert_eq!(owner_of(&meta(json!([]))), "somebody else");
    }
}
