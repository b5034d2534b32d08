{{- define "trainmaster.name" -}}
{{- .Values.nameOverride | default .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{- define "trainmaster.labels" -}}
app.kubernetes.io/name: trainmaster
app.kubernetes.io/instance: {{ include "trainmaster.name" . }}
{{- end -}}
