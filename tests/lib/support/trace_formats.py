"""Small files in the exact form of every public trace format, and malformed ones with the place."""

from __future__ import annotations

import json

GAVEL10 = (
    "LM (batch size 5)\tpython3 main.py --data %s\tlm\t--steps\t1\t1000\t2\t5\t1.2\t0.5\n"
    "A3C\tpython3 a3c.py\trl\t--max-steps\t0\t77\t1\t1\t-1.000000\t10\n"
)
GAVEL7 = "CycleGAN\tcd x && python3 g.py\t--n_steps\t1\t500\t0.000000\t1\n"
PHILLY = [
    {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": "application_1",
        "attempts": [
            {
                "start_time": "2017-10-07 01:12:09",
                "end_time": "2017-10-07 01:13:23",
                "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}],
            },
            {
                "start_time": "2017-10-07 01:13:30",
                "end_time": "2017-10-07 02:13:30",
                "detail": [{"ip": "m1", "gpus": ["gpu0"]}, {"ip": "m2", "gpus": ["gpu3"]}],
            },
        ],
        "submitted_time": "2017-10-07 01:11:39",
        "user": "ce2f4c",
    },
    {
        "status": "Killed",
        "vc": "x",
        "jobid": "j2",
        "attempts": [],
        "submitted_time": "2017-10-07 01:11:30",
        "user": "u",
    },
]
HELIOS = (
    "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    "12,uA,vcB,16,32,2,COMPLETED,2020-06-09 18:41:27,2020-06-09 18:42:27,2020-06-09 18:46:36,249,60\n"
    "11,uA,vcB,1,1,1,NODE_FAIL,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-09 18:41:11,10,0\n"
)
PAI_TASKS = (
    "job_a,ps,1.0,Terminated,1010.0,1100.0,600.0,29.0,,\n"
    "job_a,worker,2.0,Terminated,1020.0,1120.0,400.0,10.0,50.0,V100\n"
    "job_b,tensorflow,1.0,Failed,2000.0,2005.0,100.0,5.0,100.0,MISC\n"
    "job_c,tensorflow,1.0,Running,2000.0,,100.0,5.0,100.0,T4\n"
)
PAI_JOBS = "job_a,i1,userA,Terminated,1000.0,1120.0\njob_b,i2,userB,Failed,1990.0,2005.0\n"
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "p0,6000,12288,1,460,V100M16|V100M32,LS,Running,100,160,110\n"
    "p1,1000,1024,1,1000,,BE,Pending,120,130,\n"
)
ITP = "job_id,submission_time,duration,num_gpu\na,16566,3890,4\n"
ELASTIC = (
    "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"
    "a,16566,40285,bert,21347,64,4,3890\n"
)
CHRONUS = (
    "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,"
    "expect_value_list,best_effort,job_type\n"
    "0,vc_a,2,10,50,vgg16,7,1,159-189-229,10-8-5,0,soft\n"
    "1,vc_b,1,2,296,mobilenet_v2,98,8,128,10,0,strict\n"
    "2,vc_c,1,5,3,alexnet,30,17,5,10,1,best\n"
)
SACCT = (
    "JobID|User|Account|Partition|QOS|Priority|State|Submit|Start|End|Elapsed|Timelimit|NNodes|ReqTRES|Restarts\n"
    "7|ann|lab|gpu|normal|100|COMPLETED|2024-01-01T00:00:10|2024-01-01T00:01:00|2024-01-02T02:04:04|1-02:03:04"
    "|2-00:00:00|2|billing=8,cpu=64,gres/gpu:a100=8,gres/gpu=8,mem=512G,node=2|1\n"
    "7.batch||lab||||COMPLETED|2024-01-01T00:01:00|2024-01-01T00:01:00|2024-01-02T02:04:04|1-02:03:04||1|cpu=32|0\n"
    "8|bob|lab|gpu|normal|90|CANCELLED by 1000|2024-01-01T00:00:00|Unknown|2024-01-01T00:05:00|00:00:00"
    "|UNLIMITED|1|cpu=1,gres/gpu:v100=1,mem=4000M|0\n"
    "9|bob|lab|gpu|normal|90|TIMEOUT|2024-01-01T00:00:00|2024-01-01T00:00:00|2024-01-01T00:01:30|00:01:30"
    "|01:30|1|cpu=1,gres/gpu:v100=1,gres/gpu:t4=2,mem=4096M|0\n"
)
KUEUE = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "Workload",
            "metadata": {"name": "w1", "namespace": "team-a", "creationTimestamp": "2024-05-01T10:00:00Z"},
            "spec": {
                "queueName": "user-queue",
                "priority": 5,
                "podSets": [
                    {
                        "name": "main",
                        "count": 4,
                        "minCount": 2,
                        "template": {
                            "spec": {
                                "containers": [
                                    {
                                        "resources": {
                                            "requests": {
                                                "cpu": "500m",
                                                "memory": "2Gi",
                                                "nvidia.com/gpu": "2",
                                            }
                                        }
                                    }
                                ]
                            }
                        },
                    }
                ],
            },
            "status": {
                "admission": {
                    "clusterQueue": "cq",
                    "podSetAssignments": [{"name": "main", "flavors": {"nvidia.com/gpu": "a100", "cpu": "x"}}],
                },
                "conditions": [
                    {"type": "Admitted", "status": "True", "lastTransitionTime": "2024-05-01T10:05:00Z"},
                    {
                        "type": "Finished",
                        "status": "True",
                        "reason": "Succeeded",
                        "lastTransitionTime": "2024-05-01T12:05:00Z",
                    },
                ],
            },
        }
    ],
}

MALFORMED: tuple[tuple[str, int | None, str | None], ...] = (
    (GAVEL10.replace("\t1000\t", "\tmany\t"), 1, "total_steps"),
    (GAVEL10 + "A3C\tx\n", 3, None),
    (GAVEL7 + GAVEL7.replace("\t1\n", "\tx\n"), 2, "scale_factor"),
    (json.dumps(PHILLY, indent=1).replace("2017-10-07 01:12:09", "yesterday"), 2, "start_time"),
    (json.dumps(PHILLY, indent=1)[:-3], None, None),
    (HELIOS.replace("2020-06-09 18:41:01,2020", "9 June,2020"), 3, "submit_time"),
    (HELIOS.replace(",16,", ",-16,"), 2, "gpu_num"),
    (PAI_TASKS.replace("50.0,V100", "half,V100"), 2, "plan_gpu"),
    (OPENB.replace("Running", "Flying"), 2, "pod_phase"),
    (ITP + "b,nan,1,1\n", 3, "submission_time"),
    (ITP + "a,16567,1,1\n", 3, "job_id"),
    (CHRONUS.replace("159-189", "159-x"), 2, "expect_time_list"),
    (CHRONUS.replace("10-8-5", "10-8"), 2, "expect_value_list"),
    (SACCT.replace("01:30|1|", "soon|1|"), 5, "timelimit"),
    (SACCT.replace("Submit", "Sent"), 1, "Submit"),
    (json.dumps(KUEUE, indent=1).replace('"2Gi"', '"lots"'), 9, "memory"),
)
"""(text, line of the fault, column); None where the place cannot be told."""
