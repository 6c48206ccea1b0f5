//! Rewrites a broker's response as if the operation had been deferred: the two forms of a 202.

use serde_json::{Value, json};
use uuid::Uuid;

use super::faults::Form;

const DEFAULT_PARTITION: &str = "Default";

/// The results of one partition, which are those of one operation.
#[derive(Debug, PartialEq)]
pub struct Lane {
    pub queue: Value,
    pub partition: Value,
    /// Their positions in the response.
    places: Vec<usize>,
}

impl Lane {
    pub fn results(&self, all: &[Value]) -> Value {
        self.places.iter().map(|&place| all[place].clone()).collect()
    }
}

/// By partition, in the order of the request. A push names its partitions; for an ack they are passed in.
pub fn lanes(asked: &Value, results: &[Value]) -> Vec<Lane> {
    let mut lanes: Vec<Lane> = Vec::new();
    for (place, result) in results.iter().enumerate() {
        let named = [&asked["items"][place]["partition"], &result["partitionName"]];
        let partition = named.into_iter().find(|name| name.is_string()).cloned();
        let partition = partition.unwrap_or_else(|| json!(DEFAULT_PARTITION));
        let queue = result["queueName"].clone();
        match lanes.iter_mut().find(|lane| lane.queue == queue && lane.partition == partition) {
            Some(lane) => lane.places.push(place),
            None => lanes.push(Lane { queue, partition, places: vec![place] }),
        }
    }
    lanes
}

/// The body of the 202.
pub fn body(form: Form, results: &[Value], operations: &[(Uuid, Lane)]) -> Value {
    match form {
        Form::List => {
            let mut list = results.to_vec();
            for (id, lane) in operations {
                for &place in &lane.places {
                    list[place]["operationId"] = json!(id);
                    list[place]["queuePosition"] = json!(1);
                    list[place]["estimatedWait"] = json!(1);
                    list[place]["reason"] = json!("system_busy");
                }
            }
            json!(list)
        }
        Form::Object => {
            let first = operations.first().map(|(id, _)| id);
            let told = |(id, lane): &(Uuid, Lane)| json!({"operationId": id, "queue": lane.queue, "partition": lane.partition});
            let operations: Vec<Value> = operations.iter().map(told).collect();
            json!({"status": "queued", "operationId": first, "queuePosition": 1, "estimatedWait": 1,
                   "reason": "system_busy", "operations": operations})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_has_an_operation_and_each_form_tells_which() {
        let asked = json!({"items": [{"partition": "a"}, {"queue": "q"}, {"partition": "a"}]});
        let results = [0, 1, 2].map(|index| json!({"index": index, "queueName": "q"}));
        let [a, default] = <[Lane; 2]>::try_from(lanes(&asked, &results)).unwrap();
        assert_eq!((&a.partition, &default.partition), (&json!("a"), &json!("Default")));
        assert_eq!(
            a.results(&results),
            json!([{"index": 0, "queueName": "q"}, {"index": 2, "queueName": "q"}])
        );
        let ids = [Uuid::from_u128(1), Uuid::from_u128(2)];
        let operations = [(ids[0], a), (ids[1], default)];
        let list = body(Form::List, &results, &operations);
        let told: Vec<&Value> = (0..3).map(|index| &list[index]["operationId"]).collect();
        assert_eq!(told, [&json!(ids[0]), &json!(ids[1]), &json!(ids[0])]);
        let object = body(Form::Object, &results, &operations);
        assert_eq!((&object["status"], &object["operationId"]), (&json!("queued"), &json!(ids[0])));
        assert_eq!(
            object["operations"][1],
            json!({"operationId": ids[1], "queue": "q", "partition": "Default"})
        );
    }

    #[test]
    fn an_acknowledgement_names_the_place_of_its_message() {
        let asked = json!({"acknowledgments": [{"transactionId": "t"}]});
        let lanes = lanes(&asked, &[json!({"queueName": "q", "partitionName": "p"})]);
        assert_eq!((&lanes[0].queue, &lanes[0].partition), (&json!("q"), &json!("p")));
    }
}
