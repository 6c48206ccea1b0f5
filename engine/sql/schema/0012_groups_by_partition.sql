-- Retention asks which groups are registered for a partition: by its name, or for the whole queue.
create index groups_by_partition on queen.groups (queue_name, partition_name);
