//! Names, labels and owners.

use std::collections::BTreeMap;

use api::{API_VERSION, RLJob, RolloutPool, ServingCluster, labels};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};

use crate::drift::RENDER_VERSION;

/// Whose children are rendered.
#[derive(Clone, Debug)]
pub struct Owner {
    /// Kind of the owner.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    name_label: &'static str,
    uid_label: &'static str,
}

impl Owner {
    fn of(kind: &'static str, meta: &ObjectMeta, name_label: &'static str, uid_label: &'static str) -> Self {
        Self {
            kind,
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            namespace: meta.namespace.clone().unwrap_or_else(|| "default".into()),
            name_label,
            uid_label,
        }
    }

    /// An RLJob.
    pub fn rljob(o: &RLJob) -> Self {
        Self::of("RLJob", &o.metadata, labels::RLJOB, labels::RLJOB_UID)
    }

    /// A ServingCluster.
    pub fn serving(o: &ServingCluster) -> Self {
        Self::of("ServingCluster", &o.metadata, labels::SERVING, labels::SERVING_UID)
    }

    /// A RolloutPool.
    pub fn pool(o: &RolloutPool) -> Self {
        Self::of("RolloutPool", &o.metadata, labels::POOL, labels::POOL_UID)
    }

    /// The reference to put on children.
    pub fn reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: API_VERSION.into(),
            kind: self.kind.into(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            controller: Some(true),
            // A child that is slow to go never blocks its owner.
            block_owner_deletion: Some(false),
        }
    }

    /// Labels a selector uses: the uid and the role, nothing a user may want to change.
    pub(crate) fn selector(&self, role: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(self.uid_label.to_owned(), self.uid.clone()), (labels::ROLE.to_owned(), role.to_owned())])
    }

    pub(crate) fn labels(&self, role: &str) -> BTreeMap<String, String> {
        let mut l = self.selector(role);
        l.insert(self.name_label.to_owned(), self.name.clone());
        l.insert("app.kubernetes.io/name".into(), format!("thresh-{role}"));
        l.insert("app.kubernetes.io/instance".into(), self.name.clone());
        l.insert("app.kubernetes.io/component".into(), role.to_owned());
        l.insert("app.kubernetes.io/part-of".into(), self.name.clone());
        l.insert("app.kubernetes.io/managed-by".into(), "thresh-operator".into());
        l
    }

    /// Metadata of a child with this role, rendered for this revision.
    pub(crate) fn child(&self, name: String, role: &str, revision: Option<&str>) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.namespace.clone()),
            labels: Some(self.labels(role)),
            annotations: revision.map(|r| {
                BTreeMap::from([
                    (labels::REVISION.to_owned(), r.to_owned()),
                    (labels::RENDER_VERSION.to_owned(), RENDER_VERSION.to_owned()),
                ])
            }),
            owner_references: Some(vec![self.reference()]),
            ..ObjectMeta::default()
        }
    }
}

pub(crate) fn label_selector(labels: BTreeMap<String, String>) -> LabelSelector {
    LabelSelector { match_labels: Some(labels), ..LabelSelector::default() }
}

/// A selector as `/scale` wants it.
pub fn selector_text(labels: &BTreeMap<String, String>) -> String {
    labels.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",")
}
