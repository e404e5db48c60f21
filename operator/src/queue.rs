//! What a queue (Kueue) says of an attempt that waits in it: the conditions of its Workload.

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use plan::Quota;

use crate::{apply::ask, error::Result};

/// Label by which Kueue marks the Workload of a Job.
const JOB_UID: &str = "kueue.x-k8s.io/job-uid";

/// Of the Job with this uid; nothing where there is no such queue, or it has not seen the Job yet.
pub async fn quota(client: &Client, namespace: &str, job_uid: &str) -> Result<Option<Quota>> {
    let kind = GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta1", "Workload");
    let resource = ApiResource::from_gvk_with_plural(&kind, "workloads");
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let listed = ask("list Workloads", api.list(&ListParams::default().labels(&format!("{JOB_UID}={job_uid}")))).await;
    match listed {
        Ok(list) => Ok(list.items.first().and_then(of)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn of(workload: &DynamicObject) -> Option<Quota> {
    let conditions = workload.data["status"]["conditions"].as_array()?;
    let reserved = conditions.iter().find(|c| c["type"] == "QuotaReserved")?;
    let text = |key: &str| reserved[key].as_str().unwrap_or_default().to_owned();
    Some(Quota { reserved: reserved["status"] == "True", reason: text("reason"), message: text("message") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_tells_by_its_condition_whether_quota_is_set_aside() {
        let workload = |status: &str, reason: &str| -> DynamicObject {
            serde_json::from_value(serde_json::json!({
                "metadata": {"name": "w"},
                "status": {"conditions": [{"type": "QuotaReserved", "status": status, "reason": reason, "message": "m"}]},
            }))
            .unwrap()
        };
        assert_eq!(of(&workload("True", "QuotaReserved")).map(|q| q.reserved), Some(true));
        let waiting = of(&workload("False", "Inadmissible")).unwrap();
        assert_eq!((waiting.reserved, waiting.reason.as_str()), (false, "Inadmissible"));
    }
}
