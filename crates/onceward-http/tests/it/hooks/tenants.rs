//! The events of tenants.

use axum::http::{HeaderMap, HeaderValue, Method};
use onceward_http::tenants::new_token;
use serde_json::json;

use super::rig::{Handler, Rig, Vendor};

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_sees_only_its_own_events() {
    let (handler, url) = Handler::start(&[]).await;
    let ((acme, acme_hash), (globex, globex_hash)) = (new_token().unwrap(), new_token().unwrap());
    let hook = |name: &str, tenant: &str| {
        format!(
            "[hook.{name}]\npreset = \"standard-webhooks\"\nsecrets = [\"$SECRET\"]\ntenant = \"{tenant}\"\n\
             [hook.{name}.handler.app]\nurl = \"{url}\"\n"
        )
    };
    let rig = Rig::new(&format!(
        "[tenant.acme]\ntokens = [\"{acme_hash}\"]\n[tenant.globex]\ntokens = [\"{globex_hash}\"]\n{}{}",
        hook("orders", "acme"),
        hook("bills", "globex")
    ))
    .await;
    let event = Vendor::new("standard").event("msg_1", &json!({"n": 1}));
    assert_eq!(rig.deliver("orders", &event).await.result(), "accepted");
    assert_eq!(rig.deliver("bills", &event).await.result(), "accepted", "another source is another inbox");
    let get = async |token: &str, path: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::try_from(format!("Bearer {token}")).unwrap());
        rig.send(Method::GET, path, headers, Vec::new()).await
    };
    rig.until(async || (handler.got().len() == 2).then_some(())).await;
    assert_ne!(handler.got()[0].header("idempotency-key"), handler.got()[1].header("idempotency-key"));
    let own = get(&acme, "/v1/inbox/orders/events/msg_1").await;
    assert_eq!(own.json()["source"], "orders", "{}", own.text);
    assert_eq!(get(&globex, "/v1/inbox/orders/events/msg_1").await.status, 404);
    assert_eq!(get(&globex, "/v1/inbox/orders/rejected").await.status, 404);
    assert_eq!(get(&acme, "/v1/inbox").await.json()["sources"].as_array().unwrap().len(), 1);
    assert_eq!(rig.get("/v1/inbox").await.status, 401);
}
